"""What a site's operator configured: ``--node-config`` of a SuperNode.

The keys are a site's own, and no run can set them: which clients it hosts, where its
data and private state lie, what it allows. Simulation sets ``partition-id`` p of
``num-partitions`` N alone, which hosts every client c with c mod N = p.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import datasets
from clients.protocols import Opens

from .config import Rule, RunSettings
from .errors import ConfigError, unknown_name
from .methods.spreadgnn import SpreadGNNParams
from .resolve import Resolved

NodeConfig = Mapping[str, Any]
BUDGET = "edge-budget-max"
FRESH_START = "fresh-start"  # true: a client whose state is lost may begin anew
SHARE_EMBEDDINGS, SHARE_FEATURES = "share-embeddings", "share-features"
PEERS, SEALED_ONLY = "peers", "sealed-only"
_SIMULATION = ("partition-id", "num-partitions")
_RUN_FOLDERS = ("data-dir", "state-dir", "cache-dir")  # for simulation only
KEYS = (
    "clients",
    "data-path",
    "state-dir",
    "cache-dir",
    BUDGET,
    FRESH_START,
    SHARE_EMBEDDINGS,
    SHARE_FEATURES,
    PEERS,
    SEALED_ONLY,
    *_SIMULATION,
)
_PEER = re.compile(r"([0-9]+):([0-9a-f]{32})")
_SIMILAR = 0.7  # as edge-budget and edge-budget-max are, or data-dir and state-dir


def is_site(node: NodeConfig) -> bool:
    """Whether an operator configured this node, beyond what simulation sets."""
    return bool(set(node) - set(_SIMULATION))


def agrees(node: NodeConfig, key: str) -> bool:
    """Whether this node lets data out that a site must agree to by this key."""
    return not is_site(node) or node.get(key) is True


def check_keys(node: NodeConfig) -> list[str]:
    """Refuse misspelt keys, whose settings would not hold; return strange ones.

    A SuperNode may serve other apps too, so that a key like none of ours is theirs.

    Raises
    ------
    ConfigError
    """
    strange = sorted(set(node) - set(KEYS))
    for key in strange:
        if difflib.get_close_matches(key.lower(), KEYS, n=1, cutoff=_SIMILAR):
            cure = "Start the SuperNode with one of these, or without the key."
            raise ConfigError(unknown_name("node-config key", key, KEYS, cure))
    return strange


def hosts_any(node: NodeConfig) -> bool:
    """Whether a node was told to host clients of this app; others serve other apps."""
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


def edge_budget(node: NodeConfig) -> float:
    """Largest epsilon of an edge that this node's operator allows.

    Over all runs, and over all clients that its state folder knows of.

    Raises
    ------
    ConfigError
        It is no number > 0, or a run could begin a new account elsewhere.
    """
    if BUDGET not in node:
        return math.inf
    allowed = Rule(float, low=0, low_open=True)
    if not allowed.allows(node[BUDGET]):
        raise ConfigError(
            f"node-config {BUDGET} must be {allowed.describe()}, got"
            f" {node[BUDGET]!r}; start the SuperNode with, e.g., --node-config"
            f" '{BUDGET}=8.0'"
        )
    _require_state_dir(node, BUDGET, "what was spent")
    return float(node[BUDGET])


def trusted_peers(node: NodeConfig) -> dict[int, str] | None:
    """Fingerprints of other clients' keys, given by the operator; None if none is.

    In groups of four, as ``python -m simulations.fingerprint`` prints them.

    Raises
    ------
    ConfigError
        Not ``client:fingerprint`` separated by commas; or no ``state-dir`` beside it.
    """
    if PEERS not in node:
        return None
    found: dict[int, str] = {}
    given = str(node[PEERS])
    for entry in given.split(","):
        match = _PEER.fullmatch("".join(entry.split()).lower())
        if match is None or int(match[1]) in found:
            raise ConfigError(
                f"node-config {PEERS} must be client:fingerprint, 32 hexadecimal digits"
                " with or without spaces, separated by commas, each client once; got"
                f" {entry.strip()!r}. Neighbours' operators print theirs with python -m"
                " simulations.fingerprint"
            )
        words = [match[2][i : i + 4] for i in range(0, 32, 4)]
        found[int(match[1])] = " ".join(words)
    _require_state_dir(node, PEERS, "the key whose fingerprint neighbours have")
    return found


def _require_state_dir(node: NodeConfig, key: str, what: str) -> None:
    if not node.get("state-dir"):
        raise ConfigError(
            f"node-config {key} needs state-dir beside it: {what} is kept there, and a"
            " run that names a folder of its own would begin anew; add --node-config"
            " 'state-dir=\"/abs/path\"'"
        )


def _check_sealed(resolved: Resolved, node: NodeConfig) -> None:
    given = node.get(SEALED_ONLY, False)
    if not isinstance(given, bool):
        raise ConfigError(
            f"node-config {SEALED_ONLY} must be true or false, got {given!r}; start the"
            f" SuperNode with --node-config '{SEALED_ONLY}=true'"
        )
    params = resolved.params
    if given and not (isinstance(params, SpreadGNNParams) and params.seal):
        raise ConfigError(
            f"this site was started with {SEALED_ONLY}=true: it hands its model to"
            " nobody but neighbours, sealed, and the run"
            f" (method {resolved.settings.method!r}) is not method 'spreadgnn' with"
            f" spreadgnn.seal = true; set both, or start the SuperNode without"
            f" {SEALED_ONLY}"
        )


def check_consent(resolved: Resolved, node: NodeConfig) -> None:
    """Refuse a run that would let out more than this site has agreed to.

    Raises
    ------
    ConfigError
        The site is for sealed parcels only, and the run does not seal; or
        the run pools embeddings, and this site was not started with
        ``share-embeddings=true``; or it hands features on, and without
        ``share-features=true``; or edges are to be bounded, and it adds no noise to
        them or keeps features that tell them.
    """
    _check_sealed(resolved, node)
    trusted_peers(node)
    if resolved.task.pools and not agrees(node, SHARE_EMBEDDINGS):
        raise ConfigError(
            "the run asks for the embeddings and labels of this site's graphs"
            ' (embedding.evaluation = "pooled"), which it does not share; set that key'
            ' to "local", or start the SuperNode with --node-config'
            f" '{SHARE_EMBEDDINGS}=true'"
        )
    client = resolved.method.client
    hands_on = issubclass(client, Opens) and client.shares_features(resolved.params)
    if hands_on and not agrees(node, SHARE_FEATURES):
        raise ConfigError(
            "the run hands feature rows of this site's nodes to the server and to every"
            f" other client (table {resolved.params.TABLE!r} of the run config), which"
            " this site does not share; switch that off, or start the SuperNode with"
            f" --node-config '{SHARE_FEATURES}=true'"
        )
    is_capped = edge_budget(node) < math.inf
    if is_capped and resolved.privacy.edge_epsilon == 0:
        raise ConfigError(
            "the run adds no noise to edges (privacy.edge-epsilon is 0), so nothing"
            f" bounds what it tells of them, and this site's {BUDGET} allows"
            f" epsilon {node[BUDGET]!r}; set privacy.edge-epsilon in the run"
            f" config, or start the SuperNode without {BUDGET}"
        )
    if is_capped and resolved.privacy.keep_edge_features:
        raise ConfigError(
            "the run keeps features that tell edges (privacy.keep-edge-features is"
            f" true), which no noise covers, and this site's {BUDGET} allows epsilon"
            f" {node[BUDGET]!r}; leave that key out of the run config, or start the"
            f" SuperNode without {BUDGET}"
        )


def check_identity(resolved: Resolved, node: NodeConfig) -> None:
    """Refuse to take part of a data set that nobody can check to be the same.

    Raises
    ------
    ConfigError
        One data set in files is shared out among sites, and noise on updates is to
        protect everything that a checksum of the files would confirm.
    """
    cut = datasets.is_cut(resolved.settings)
    if is_site(node) and cut and resolved.privacy.update_clip > 0:
        raise ConfigError(
            f"the run shares dataset {resolved.settings.dataset!r} out among sites, for"
            " which all need the same files; this is compared by checksums, which a run"
            " with privacy.update-clip does not tell. Give every site its own graphs"
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
    )


def ignored_folders(run_config: Mapping[str, Any], node: NodeConfig) -> list[str]:
    """Keys of the run that name folders, which mean nothing at a site."""
    return [key for key in _RUN_FOLDERS if is_site(node) and run_config.get(key)]
