"""Check this site before a run: machine, SuperLink, data, one round of training.

Nothing of the data leaves the site: training happens in this process. The SuperLink
sees a connection and, with a key, a SuperNode that signs on and off at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import datasets

from ..core.data import GraphPartition
from ..core.errors import ConfigError, FedGraphError, PolicyError
from ..node.introduce import check_elsewhere
from ..node.node_config import check_keys, check_node, hosted_clients
from ..node.policy import agree_at, policy_of
from ..resolve import Resolved, defaults, resolve
from . import check_data, check_machine
from .check_link import Link, add_run_config, check_link, parse_config, read_run_config
from .findings import (
    OK,
    PROBLEM,
    SKIPPED,
    Finding,
    as_json,
    as_table,
    exit_code,
    look,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line; names are those of flower-supernode."""
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?",
        help="this site's data (default: data-path of --node-config)",
    )  # fmt: skip
    parser.add_argument(
        "--schema", type=Path, metavar="FILE",
        help="the schema.toml that all sites share, and a copy of which FOLDER has",
    )  # fmt: skip
    add_run_config(parser)
    parser.add_argument(
        "--node-config", default="", metavar="CONFIG",
        help="what the SuperNode will be started with",
    )  # fmt: skip
    parser.add_argument("--superlink", metavar="HOST:PORT")
    parser.add_argument("--root-certificates", type=Path, metavar="FILE")
    parser.add_argument("--auth-supernode-private-key", type=Path, metavar="FILE")
    parser.add_argument("--insecure", action="store_true", help="without TLS")
    parser.add_argument(
        "--line-mbit", type=float, default=10.0, metavar="N",
        help="speed of this site's line in Mbit/s (default 10); it is not measured",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Look at everything that was asked for; print the findings."""
    if not args.line_mbit > 0:
        raise ConfigError(f"--line-mbit must be > 0, got {args.line_mbit}")
    node = parse_config([args.node_config], "--node-config")
    found = look("versions", check_machine.versions, "run this in a clone")
    resolved: Resolved | None = None
    if args.run_config:
        resolved = read_run_config(args.run_config, node)
    device = resolved.settings.device if resolved else "auto"
    found += look("device", lambda: check_machine.device(device), "see nvidia-smi")
    found += _state(node)
    if cache := node.get("cache-dir"):
        folder = datasets.cache_root(str(cache))
        found += look(
            "cache folder", lambda: check_machine.cache_folder(folder), "see it"
        )
    found += [
        Finding(what="run", state=OK, found=f"note: {words}")
        for words in (resolved.warnings if resolved else ())
    ]
    found += _link(args)
    agreed = _node(args, node, resolved)
    found += agreed
    if resolved is None and (resolved := _by_schema(args)):
        words = "note: no --run-config; the schema says what is read, and fedavg trains"
        found += [Finding(what="run", state=OK, found=words)]
        hosted = ",".join(map(str, range(resolved.settings.num_clients)))
        node = {"cache-dir": node.get("cache-dir", ""), "clients": hosted}
    with check_data.rows_are_findings():
        found += _data(args, node, resolved, agrees=exit_code(agreed) == 0)
    print(as_json(found) if args.json else as_table(found))
    return exit_code(found)


def _by_schema(args: argparse.Namespace) -> Resolved | None:
    """Make settings of a run that reads tables by the schema; None without one."""
    if args.folder is None:
        return None
    try:
        schema = datasets.read_schema(args.schema or args.folder / "schema.toml")
    except FedGraphError:
        return None  # if it is there, a finding says so
    config = {
        "method": "fedavg",
        "dataset": schema.dataset,
        "csv-label-kind": schema.target_kind,
        "num-clients": datasets.count_clients(args.folder),
        "csv-bad-rows": "refuse",
    }
    return resolve({**defaults(), **config})


def _skipped(what: str, option: str) -> list[Finding]:
    cure = f"add {option}"
    return [Finding(what=what, state=SKIPPED, found="nothing to look at", cure=cure)]


def _state(node: Mapping[str, Any]) -> list[Finding]:
    if not node.get("state-dir"):
        return _skipped("state folder", "--node-config 'state-dir=\"/abs/path\"'")
    folder = Path(str(node["state-dir"]))
    return look("state folder", lambda: check_machine.state_folder(folder), "see it")


def _link(args: argparse.Namespace) -> list[Finding]:
    if not args.superlink:
        return _skipped("SuperLink", "--superlink HOST:PORT --root-certificates ca.crt")
    link = Link(
        superlink=args.superlink,
        root_certificates=args.root_certificates,
        key=args.auth_supernode_private_key,
        insecure=args.insecure,
    )
    found = look("SuperLink", lambda: check_link(link), "check the options")
    if link.key is None:
        found += _skipped("key", "--auth-supernode-private-key FILE")
    return found


def _node(
    args: argparse.Namespace, node: Mapping[str, Any], resolved: Resolved | None
) -> list[Finding]:
    """Whether the node-config can be read, and the site agrees to the run."""
    if not node:
        return _skipped("node-config", "--node-config 'clients=\"0\" ...'")

    def see() -> list[Finding]:
        strange = check_keys(node)
        if strange:
            found = f"keys {', '.join(strange)} mean nothing here"
            cure = "see keys of a SuperNode in docs/configuration.md"
            return [Finding(what="node-config", state=PROBLEM, found=found, cure=cure)]
        policy = policy_of(node)
        if resolved is None:
            check_node(node)
            found = "keys are known; without --run-config nothing says if they allow it"
            return [Finding(what="node-config", state=OK, found=found)]
        own = {"data-path": str(args.folder)} if args.folder else {}
        config = {**defaults(), **resolved.to_config()}
        _, hosted = agree_at({**node, **own}, policy, config)
        found = f"hosts client(s) {', '.join(map(str, hosted))}, and allows this run"
        return [Finding(what="node-config", state=OK, found=found)]

    return look("node-config", see, "correct that file, or --node-config")


def _data(
    args: argparse.Namespace,
    node: Mapping[str, Any],
    resolved: Resolved | None,
    *,
    agrees: bool,
) -> list[Finding]:
    if resolved is None:
        if args.folder and not args.folder.exists():
            words, cure = f"there is no {args.folder}", "correct FOLDER"
            return [Finding(what="data", state=PROBLEM, found=words, cure=cure)]
        cure = '--schema FILE, or --run-config \'method="..." dataset="..."\''
        found = _schema(args, args.folder) if args.folder else []
        return found or _skipped("data", cure)
    given = args.folder or node.get("data-path")
    if given is None and datasets.reads_files(resolved.settings):
        return _skipped("data", "FOLDER")
    folder, cache_dir = Path(str(given or "/")), str(node.get("cache-dir", ""))
    count = resolved.settings.num_clients
    try:
        hosted = hosted_clients(node, count) if "clients" in node else [0]
    except ConfigError:
        return []  # node-config has said so
    found = _schema(args, folder) if given else []
    kind, held_out = datasets.label_kind(resolved.settings), resolved.settings.held_out

    def see(client: int) -> list[Finding]:
        partition = check_data.read(resolved, folder, client, cache_dir)
        check_elsewhere(resolved, partition)
        return [
            *check_data.describe(partition, kind, held_out),
            *_allowed(node, resolved, partition),
            *check_data.left_out(resolved, folder, client, cache_dir),
        ]

    for client in hosted:
        found += look(
            f"data of client {client}" if len(hosted) > 1 else "data",
            partial(see, client),
            "correct the data",
        )
    if any(f.state != OK for f in found if f.what.startswith(("data", "rows"))):
        return found
    return found + look(
        "training",
        lambda: check_data.one_round(
            resolved,
            folder,
            hosted[0],
            # A policy that refuses the run has been named.
            node if agrees else {"cache-dir": cache_dir},
            mbit=args.line_mbit,
        ),
        "see the message",
    )


def _allowed(
    node: Mapping[str, Any], resolved: Resolved, partition: GraphPartition
) -> list[Finding]:
    """Whether the policy lets a client with so few examples take part."""
    try:
        policy = policy_of(node)
    except PolicyError:
        return []  # node-config has said so
    try:
        policy.check_data(resolved, partition)
    except PolicyError as error:
        cure = "change the policy, or have the run without this client"
        return [Finding(what="data", state=PROBLEM, found=str(error), cure=cure)]
    return []


def _schema(args: argparse.Namespace, folder: Path) -> list[Finding]:
    """Whether the site's schemas can be read, and its own is the shared one."""

    def read(path: Path) -> list[Finding]:
        datasets.read_schema(path)
        return []

    broken = [
        finding
        for pattern in ("schema.toml", "[!._]*/schema.toml")
        for path in sorted(folder.glob(pattern))
        for finding in look("schema", partial(read, path), "correct it")
    ]
    if broken or args.schema is None or folder.is_file():
        return broken
    own, cure = folder / "schema.toml", f"cp {args.schema} {folder / 'schema.toml'}"

    def see() -> list[Finding]:
        shared = datasets.read_schema(args.schema)
        if not own.exists():
            datasets.use_schema(str(folder.expanduser().absolute()), args.schema)
            found = f"a run needs {own}; here the data are read by {args.schema}"
            return [Finding(what="schema", state=PROBLEM, found=found, cure=cure)]
        if shared.sha256 != datasets.read_schema(own).sha256:
            found = f"{own} differs from {args.schema}"
            return [Finding(what="schema", state=PROBLEM, found=found, cure=cure)]
        found = f"{own} is the shared one ({shared.sha256[:12]})"
        return [Finding(what="schema", state=OK, found=found)]

    return look("schema", see, cure)
