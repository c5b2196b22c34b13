"""What a site's operator configured: ``--node-config`` of a SuperNode.

The keys are a site's own, and no run can set them: which clients it hosts, where its
data and private state lie, which file says what it allows. Simulation sets
``partition-id`` p of ``num-partitions`` N alone, which hosts every client c with
c mod N = p.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets

from ..core.config import RunSettings
from ..core.errors import ConfigError, unknown_name
from ..core.plugins import named_in, origin
from ..core.rules import shown
from ..core.secure_aggregation import NAMED
from ..core.words import SITE_NAME_WORDS, is_site_name
from ..resolve import Resolved
from .resident import RESIDENT

NodeConfig = Mapping[str, Any]
POLICY = "policy"  # file that says what the site allows
FRESH_START = "fresh-start"  # true: a client whose state is lost may begin anew
PEERS = "peers"
SITE_NAME = "site-name"
PLUGINS = "plugins"  # modules that are not in the bundle, and may be imported
_SIMULATION = ("partition-id", "num-partitions")
_RUN_FOLDERS = ("data-dir", "state-dir", "cache-dir")  # for simulation only
KEYS = (
    "clients",
    "data-path",
    "state-dir",
    "cache-dir",
    POLICY,
    FRESH_START,
    PEERS,
    SITE_NAME,
    PLUGINS,
    RESIDENT,
    *_SIMULATION,
)
# Limits of earlier versions, and what to write into the policy instead.
RETIRED = {
    "edge-budget-max": "edge-epsilon-max = ...",
    "sealed-only": "sealed-only = true",
}
_PEER = re.compile(r"([0-9]+):([0-9a-f]{32})")
_SIMILAR = 0.7  # as data-dir and state-dir are


def is_site(node: NodeConfig) -> bool:
    """Whether an operator configured this node, beyond what simulation sets."""
    return bool(set(node) - set(_SIMULATION))


def check_keys(node: NodeConfig) -> list[str]:
    """Refuse misspelt keys of ours; return keys that mean nothing here.

    A SuperNode may serve other apps too, so that a key like none of ours is theirs.
    """
    for key, cure in RETIRED.items():
        if key in node:
            raise ConfigError(
                f"node-config key {key!r} no longer exists; write `{cure}` into the"
                " file that node-config policy names (docs/privacy.md)"
            )
    strange = sorted(set(node) - set(KEYS))
    for key in strange:
        if difflib.get_close_matches(key.lower(), KEYS, n=1, cutoff=_SIMILAR):
            cure = "Start the SuperNode with one of these, or without the key."
            raise ConfigError(unknown_name("node-config key", key, KEYS, cure))
    return strange


def check_node(node: NodeConfig) -> None:
    """Refuse what is wrong in a node-config by itself.

    Raises
    ------
    ConfigError
        Or a flag is neither true nor false: a text would count as false.
    """
    check_keys(node)
    site_name(node)
    trusted_peers(node)
    for key in (RESIDENT, FRESH_START):
        if not isinstance(given := node.get(key, False), bool):
            raise ConfigError(
                f"node-config {key} must be true or false, got {shown(given)}; start"
                f" the SuperNode with --node-config '{key}=true'"
            )


def hosts_any(node: NodeConfig) -> bool:
    """Whether this node hosts clients of this app; other nodes serve other apps."""
    return "clients" in node or set(_SIMULATION) <= set(node)


def hosted_clients(node: NodeConfig, num_clients: int) -> list[int]:
    """Ids of the clients on this node, ascending.

    Raises
    ------
    ConfigError
        Neither ``clients`` nor ``partition-id`` and ``num-partitions`` is given, or an
        id is not in ``range(num_clients)``.
    """
    if "clients" in node:
        given = str(node["clients"])
        try:
            ids = sorted({int(part) for part in given.split(",")})
        except ValueError:
            ids = [-1]
        if ids[0] < 0 or ids[-1] >= num_clients:
            raise ConfigError(
                f"node-config clients must be ids below {num_clients}, separated by"
                f" commas, got {given!r}; e.g. --node-config 'clients=\"0,1\"'"
            )
        return ids
    if set(_SIMULATION) <= set(node):
        first, step = (int(node[key]) for key in _SIMULATION)
        return list(range(first, num_clients, step))
    raise ConfigError(
        "this node does not know its clients; start the SuperNode with"
        " --node-config 'clients=\"0\"'"
    )


def site_name(node: NodeConfig) -> str:
    """Name by which the coordinator is to know this site; "" if it has none.

    Raises
    ------
    ConfigError
        It is no short name: it stands in logs, tables and labels of metrics.
    """
    if SITE_NAME not in node:
        return ""
    name = node[SITE_NAME]
    if not isinstance(name, str) or not is_site_name(name):
        raise ConfigError(
            f"node-config {SITE_NAME} must be {SITE_NAME_WORDS}, got {shown(name)};"
            f" start the SuperNode with, e.g., --node-config '{SITE_NAME}=\"north\"'"
        )
    return name


def trusted_peers(node: NodeConfig) -> dict[int, str] | None:
    """Fingerprints of other clients' keys, given by the operator; None if none is.

    In groups of four, as ``fedgraph site fingerprint`` prints them. A path names a file
    that all sites have alike, with a line for each client.

    Raises
    ------
    ConfigError
        Not ``client:fingerprint`` separated by commas; or no ``state-dir`` beside it;
        or the file cannot be read.
    """
    if PEERS not in node:
        return None
    found: dict[int, str] = {}
    given = str(node[PEERS])
    if given.startswith("/"):
        try:
            given = Path(given).read_text(encoding="utf-8").strip().replace("\n", ",")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"node-config {PEERS} names the file {given}, which cannot be read:"
                f" {error}; correct the path"
            ) from error
    for entry in given.split(","):
        match = _PEER.fullmatch("".join(entry.split()).lower())
        if match is None or int(match[1]) in found:
            raise ConfigError(
                f"node-config {PEERS} must be client:fingerprint, 32 hexadecimal digits"
                " with or without spaces, separated by commas (in a file by lines),"
                " each client once; got"
                f" {entry.strip()!r}. Neighbours' operators print theirs with"
                " fedgraph site fingerprint"
            )
        words = [match[2][i : i + 4] for i in range(0, 32, 4)]
        found[int(match[1])] = " ".join(words)
    if not node.get("state-dir"):
        raise ConfigError(
            f"node-config {PEERS} needs state-dir beside it: the key whose fingerprint"
            " neighbours have is kept there, and a run that names a folder of its own"
            " would begin anew; add --node-config 'state-dir=\"/abs/path\"'"
        )
    return found


def known_by(node: NodeConfig) -> str:
    """Say how this node knows the keys of other clients."""
    return NAMED if trusted_peers(node) is not None else "believed when first seen"


def check_plugins(run_config: Mapping[str, Any], node: NodeConfig) -> None:
    """Refuse to import a module of this site's that a run names; before it is imported.

    The modules of the bundle are the run's own, like all of its code. Any other module
    is the site's: a run that imported it could start what its author never meant it to.

    Raises
    ------
    ConfigError
        A plug-in is not in the bundle, and ``plugins`` does not name its module.
    """
    allowed = {part.strip() for part in str(node.get(PLUGINS, "")).split(",")}
    for key, module in named_in(run_config).items():
        if is_site(node) and origin(module) is None and module not in allowed:
            raise ConfigError(
                f"the run's {key} is in module {module!r}, which is not in folder"
                " plugins of the run's bundle, and this site imports no module of its"
                " own unless its operator names it; put the module into that folder, or"
                f" start the SuperNode with --node-config '{PLUGINS}=\"{module}\"'"
            )


def check_identity(resolved: Resolved, node: NodeConfig) -> None:
    """Refuse a part of a data set if nobody can check that sites have the same files.

    Raises
    ------
    ConfigError
        One data set in files is shared out among sites, and noise on updates is to
        protect everything that a checksum of the files would confirm.
    """
    cut = datasets.is_cut(resolved.settings)
    if is_site(node) and cut and resolved.privacy.hides_labels:
        raise ConfigError(
            f"the run shares dataset {resolved.settings.dataset!r} out among sites, for"
            " which all need the same files; this is compared by checksums, which a run"
            " that hides labels by noise does not tell. Give every site its own graphs"
            ' (partition="files", or dataset="smiles-csv"), or run this experiment in'
            " simulation"
        )


def own_folders(settings: RunSettings, node: NodeConfig) -> RunSettings:
    """Take a site's folders from its node-config alone, in place of the run's.

    Whoever starts runs would else choose what is read, written and deleted there.

    Raises
    ------
    ConfigError
        The data set is in files, and the site has no ``data-path``.
    """
    if not is_site(node):
        return settings
    if datasets.reads_files(settings) and not node.get("data-path"):
        raise ConfigError(
            f"dataset {settings.dataset!r} is read from files, and this site was"
            " started without data-path, the only place that a site reads from; start"
            " the SuperNode with --node-config 'data-path=\"/abs/path\"'"
        )
    return replace(
        settings,
        data_dir=str(node.get("data-path", "")),
        state_dir=str(node.get("state-dir", "")),
        cache_dir=str(node.get("cache-dir", "")),
        results_dir="",
        resume="",
        init_from="",
    )


def ignored_folders(run_config: Mapping[str, Any], node: NodeConfig) -> list[str]:
    """Keys of the run that name folders, which mean nothing at a site."""
    return [key for key in _RUN_FOLDERS if is_site(node) and run_config.get(key)]
