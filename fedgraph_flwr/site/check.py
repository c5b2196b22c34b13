"""``fedgraph site check``: folders, SuperLink, data, one round of training."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import datasets

from ..agreement import name_classes
from ..core.config import RunSettings
from ..core.data import SPLITS, GraphPartition
from ..core.errors import ConfigError, FedGraphError
from ..core.process import choose_device
from ..core.tasks import EDGE_CLASSIFICATION, OF_EDGES
from ..core.words import shortened
from ..node.introduce import check_elsewhere
from ..node.node_config import PLUGINS, POLICY, check_keys, check_node, hosted_clients
from ..node.policy import Policy, agree_at, read_policy
from ..resolve import Resolved, defaults, resolve
from ..results.dry_run import REPORT
from .baseline import RunConfig, own_settings, parse_config, read_run_config, run_one
from .check_link import check_link
from .findings import AsJson, Findings

_FEW = 10  # test items, below which a score says nothing
# And of a class with less than a third; of many labels, mostly rare, each has some.
_FEW_OF_CLASS = {"classes": 5, "nodes": 5, "edges": 5, "binary": 1}
_USE = {"train": "train", "val": "validate", "test": "test"}
_PLAIN = "fedavg"  # stands in for a method that one client cannot run alone


def check(
    folder: Annotated[
        Path | None,
        typer.Argument(help="This site's data (else data-path of --node-config)."),
    ] = None,
    *,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The schema.toml that all sites share; FOLDER has a copy of it.",
        ),
    ] = None,
    run_config: RunConfig = "",
    node_config: Annotated[
        str,
        typer.Option(metavar="CONFIG", help="What the SuperNode will be started with."),
    ] = "",
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT")] = "",
    root_certificates: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    auth_supernode_private_key: Annotated[
        Path | None, typer.Option(metavar="FILE")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check this site before a run: folders, SuperLink, data, one round of training.

    Nothing of the data leaves the site: training happens in this process. The SuperLink
    sees a connection and, with a key, a SuperNode that signs on and off at once. The
    exit code is 1 if there are problems, 2 if something could not be looked at.
    """
    node, table = parse_config(node_config, "--node-config"), Findings()
    resolved = read_run_config(run_config, node) if run_config else None
    with table.looking("device", "see nvidia-smi"):
        device = choose_device(resolved.settings.device if resolved else "auto")
        table.add("device", str(device))
    if state := str(node.get("state-dir", "")):
        with table.looking("state folder", "see it"):
            _look_at_state(table, Path(state))
    else:
        table.skip("state folder", "--node-config 'state-dir=\"/abs/path\"'")
    for words in resolved.warnings if resolved else ():
        table.add("run", f"note: {words}")
    check_link(
        table,
        superlink,
        roots=root_certificates,
        key=auth_supernode_private_key,
        insecure=insecure,
    )
    policy = _look_at_node(table, folder, node, resolved)
    if resolved is None and (resolved := _by_schema(folder, schema)):
        words = "note: no --run-config; the schema says what is read, and fedavg trains"
        table.add("run", words)
        hosted = ",".join(map(str, range(resolved.settings.num_clients)))
        node = {"cache-dir": node.get("cache-dir", ""), "clients": hosted}
    _look_at_data(table, folder, schema, node, resolved, policy)
    print(table.as_json() if as_json else table.as_text())
    return table.exit_code


def _look_at_state(table: Findings, folder: Path) -> None:
    """Whether private state can be written, and only its owner can read it."""
    what, place, own = "state folder", folder, f"{os.getuid()}:{os.getgid()}"
    if not folder.is_absolute():
        cure = "give an absolute path: a SuperNode starts anywhere"
        table.add(what, f"{folder} is a relative path", cure)
        return
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        user = f"-o {os.getuid()} -g {os.getgid()}"
        table.add(
            what,
            f"{place} cannot be written as the user of the SuperNode ({own}):"
            f" {error.strerror}",
            f"as root: install -d -m 700 {user} {folder}; or choose another state-dir",
        )
        return
    cure, found = "", f"{folder} can be written, and read by its owner alone"
    if not folder.exists():
        found = f"{folder} is not there yet"
        cure = f"mkdir -m 700 -p {folder}, as the user of the SuperNode ({own})"
    elif (about := folder.stat()).st_uid != os.getuid() or about.st_mode & 0o077:
        found = f"{folder} belongs to user {about.st_uid}, this is {os.getuid()}"
        if about.st_uid == os.getuid():
            found = f"{folder} has mode {about.st_mode & 0o777:o}: others can read it"
        cure = f"chown {own} {folder} && chmod 700 {folder}"
    table.add(what, found, cure)


# What the site agrees to --------------------------------------------------------------


def _look_at_node(
    table: Findings,
    folder: Path | None,
    node: Mapping[str, Any],
    resolved: Resolved | None,
) -> Policy | None:
    """Whether the site agrees to the run; return its policy, if that can be read."""
    what = "node-config"
    policy: Policy | None = None
    if not node:
        table.skip(what, "--node-config 'clients=\"0\" ...'")
        return None
    with table.looking(what, "correct that file, or --node-config"):
        if strange := check_keys(node):
            cure = "see keys of a SuperNode in docs/configuration.md"
            table.add(what, f"keys {', '.join(strange)} mean nothing here", cure)
            return None
        policy, _ = read_policy(node)
        if resolved is None:
            check_node(node)
            found = "keys are known; without --run-config nothing says if they allow it"
            table.add(what, found)
            return policy
        own = {"data-path": str(folder)} if folder else {}
        config = {**defaults(), **resolved.to_config()}
        _, hosted = agree_at({**node, **own}, policy, config)
        ids = ", ".join(map(str, hosted))
        table.add(what, f"hosts client(s) {ids}, and allows this run")
    return policy


def _by_schema(folder: Path | None, shared: Path | None) -> Resolved | None:
    """Make settings of a run that reads tables by the schema; None without one."""
    if folder is None:
        return None
    try:
        schema = datasets.read_schema(shared or folder / "schema.toml")
    except FedGraphError:
        return None  # if it is there, a finding says so
    edges = schema.edges
    is_plain = edges is None or (edges.is_simple and not edges.directed)
    config = {
        "method": _PLAIN,
        "dataset": schema.dataset,
        "task": "auto" if schema.targets else EDGE_CLASSIFICATION.key,
        "encoder": "auto" if is_plain else "gatv2",
        "csv-label-kind": schema.target_kind,
        "num-clients": datasets.count_clients(folder),
        "csv-bad-rows": "refuse",
    }
    return resolve({**defaults(), **config})


# The data ---------------------------------------------------------------------------


def _look_at_data(
    table: Findings,
    folder: Path | None,
    schema: Path | None,
    node: Mapping[str, Any],
    resolved: Resolved | None,
    policy: Policy | None,
) -> None:
    """Look at schemas and each client's data; if all is well train one round."""
    given = folder or node.get("data-path")
    if folder and not folder.exists():
        table.add("data", f"there is no {folder}", "correct FOLDER")
        return
    if given:
        _look_at_schema(table, schema, Path(given))
    if resolved is None:
        if not table.fails("schema"):
            how = '--schema FILE, or --run-config \'method="..." dataset="..."\''
            table.skip("data", how)
        return
    if not given and datasets.reads_files(resolved.settings):
        table.skip("data", "FOLDER")
        return
    try:
        count = resolved.settings.num_clients
        hosted = hosted_clients(node, count) if "clients" in node else [0]
    except ConfigError:
        return  # node-config has said so
    cache_dir = str(node.get("cache-dir", ""))
    settings = own_settings(resolved, Path(given or "/"), cache_dir)
    for client in hosted:
        what = f"data of client {client}" if len(hosted) > 1 else "data"
        with table.looking(what, "correct the data"):
            datasets.check_hosted(settings, [client])
            partition = datasets.load_partition(settings, client)
            check_elsewhere(resolved, partition)
            _describe(table, partition, resolved)
            _look_at_rows(table, settings, client, resolved.settings.csv_bad_rows)
            if policy is not None:
                policy.check_data(resolved, partition)
    if not table.fails("data", "rows"):
        # A policy that refuses the run has been named.
        own = {"cache-dir": cache_dir} if table.fails("node-config") else node
        with table.looking("training", "see the message"):
            place = Path(given or "/")
            _train_one_round(table, place, resolved, hosted[0], own)


def _look_at_schema(table: Findings, shared: Path | None, folder: Path) -> None:
    """Whether the site's schemas can be read, and its own is the shared one."""
    for pattern in ("schema.toml", "[!._]*/schema.toml"):
        for path in sorted(folder.glob(pattern)):
            with table.looking("schema", "correct it"):
                datasets.read_schema(path)
    if table.fails("schema") or shared is None or folder.is_file():
        return
    own = folder / "schema.toml"
    cure = f"cp {shared} {own}"
    with table.looking("schema", cure):
        if not own.exists():
            table.add("schema", f"there is no {own}, which a run needs", cure)
        elif datasets.read_schema(shared).sha256 != datasets.read_schema(own).sha256:
            table.add("schema", f"{own} differs from {shared}", cure)
        else:
            table.add("schema", f"{own} is the shared one")


def _describe(table: Findings, partition: GraphPartition, resolved: Resolved) -> None:
    """Sizes and splits."""
    graphs, label_kind = partition.graphs, datasets.label_kind(resolved.settings)
    is_one = label_kind in ("nodes", *OF_EDGES.values())
    count = graphs.num_nodes if is_one else len(graphs)
    edges = graphs.edge_index.shape[1] // (2 if graphs.is_undirected else 1)
    beside = f" ({', '.join(graphs.beside)})" if graphs.beside else ""
    found = (
        f"{count} {'nodes' if is_one else 'graphs'}, {edges} edges{beside},"
        f" {graphs.num_features} features,"
        f" {graphs.num_classes} {'targets' if graphs.has_tasks else 'classes'}"
    )
    if partition.left_out:
        found += f"; left out: {partition.left_out}"
    table.add("data", found)
    _look_at_splits(table, partition, resolved.settings, label_kind)


def _look_at_rows(
    table: Findings, settings: RunSettings, client: int, bad_rows: str
) -> None:
    """Name all rows of own tables that cannot be used, and cells that are not known.

    Such rows are a problem if the run refuses them (``csv-bad-rows``).
    """
    bad, remarks = datasets.list_faults(settings, client)
    for text in remarks:
        table.add("cells", f"note: {text}")
    if not bad:
        return
    count = datasets.count_rows(bad)
    found = [f"{count} cannot be used, their graphs or nodes are left out:"]
    cure = "correct them, or agree with all sites on csv-bad-rows 'skip'"
    table.add("rows", "\n".join(found + bad), cure if bad_rows == "refuse" else "")


def _look_at_splits(
    table: Findings, partition: GraphPartition, settings: RunSettings, label_kind: str
) -> None:
    """Whether there are test items enough, of each class too."""
    sizes = {split: len(partition.positions(split)) for split in SPLITS}
    found = ", ".join(f"{n} to {_USE[split]}" for split, n in sizes.items())
    least, cure = _FEW_OF_CLASS.get(label_kind, 0), ""
    if counts := _test_classes(partition, label_kind):
        words = [f"{n} of {name!r}" for name, n in counts.items()]
        found += f" ({shortened(', '.join(words))})"
    if (folds := settings.folds) > 1:
        found += f", in each of {folds} folds"
    tested = folds * sizes["test"]
    if tested < _FEW or not all(sizes.values()):
        cure = f"add items: fewer than {_FEW} test items say nothing of a model"
    elif folds * min(counts.values(), default=least) < min(least, tested / 3):
        cure = (
            f"add items of such a class: fewer than {least} in the test set say nothing"
            " of how well it is found, whatever the score of all"
        )
    if cure and folds == 1:
        more = f"a held-out above {settings.held_out:g}, or on folds=5"
        cure += f"; or agree with all sites on {more}"
    table.add("splits", found, cure)


def _test_classes(partition: GraphPartition, label_kind: str) -> dict[str, int]:
    """Count test items by class, the rarest first; of numbers to predict none."""
    graphs = partition.graphs
    if label_kind == "regression":
        return {}
    y = graphs.y[partition.test]
    if graphs.has_tasks:
        counts = {
            f"{partition.tasks[t]}: {word}": np.sum(y[:, t] == value)
            for t in partition.owned_tasks
            for value, word in enumerate(("no", "yes"))
        }
    else:
        names = name_classes(graphs.classes, graphs.num_classes)
        counts = dict(zip(names, np.bincount(y, minlength=len(names)), strict=True))
    return {k: int(n) for k, n in sorted(counts.items(), key=lambda pair: pair[1])}


def _train_one_round(
    table: Findings,
    folder: Path,
    resolved: Resolved,
    client: int,
    node: Mapping[str, Any],
) -> None:
    """Train one round without the others; say what it costs in seconds and bytes.

    The site takes part as ``node`` says, the node-config of its SuperNode.
    """
    config = {**resolved.to_config(), "dry-run": True}
    kept = ("cache-dir", POLICY, PLUGINS)
    own, note = {key: str(node[key]) for key in kept if key in node}, ""
    if resolved.secagg.on:  # of one client there is no sum
        config["secure-aggregation.on"] = False
        own.pop(POLICY, None)
        note = ", without pads"
    if not resolved.method.strategy.TAKES_START:
        shared = RunSettings.config_fields()
        config = {k: v for k, v in config.items() if k in shared}
        config |= {"method": _PLAIN}
        own.pop(POLICY, None)  # which is for the run's own method
        note = f", by {_PLAIN}, as {resolved.settings.method} needs neighbours"
    with run_one(config, folder, client, own) as (results, _):
        report = json.loads((results / REPORT).read_text())
    if failed := report["failures"]:
        raise ConfigError(
            f"one round of training failed: {failed}; see the lines above"
        )
    spent, rounds = report["clients"][str(client)], report["planned_rounds"]
    down, up = spent.get("bytes_down", 0), spent.get("bytes_up", 0)
    table.add(
        "training",
        f"one round takes {spent['seconds']:.2f} s here{note}, with {down / 1000:.1f}"
        f" kB in and {up / 1000:.1f} kB out; {rounds} rounds move"
        f" {(down + up) * rounds / 1e6:.1f} MB",
    )
