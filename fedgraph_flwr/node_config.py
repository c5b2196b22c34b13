"""What a site's operator configured: ``--node-config`` of a SuperNode.

The keys are a site's own, and no run can set them: which clients it hosts, where its
data and private state lie, what it allows. Simulation sets ``partition-id`` p of
``num-partitions`` N alone, which hosts every client c with c mod N = p.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import Rule, RunSettings
from .errors import ConfigError, unknown_name
from .registry import Resolved
from .tasks import EmbeddingSettings

NodeConfig = Mapping[str, Any]
BUDGET = "edge-budget-max"
SHARE_EMBEDDINGS, SHARE_FEATURES = "share-embeddings", "share-features"
_SIMULATION = ("partition-id", "num-partitions")
KEYS = (
    "clients",
    "data-path",
    "state-dir",
    BUDGET,
    SHARE_EMBEDDINGS,
    SHARE_FEATURES,
    *_SIMULATION,
)
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
    if not node.get("state-dir"):
        raise ConfigError(
            f"node-config {BUDGET} needs state-dir beside it: what was spent is"
            " kept there, and a run that names a folder of its own would start from 0;"
            " add --node-config 'state-dir=\"/abs/path\"'"
        )
    return float(node[BUDGET])


def check_consent(resolved: Resolved, node: NodeConfig) -> None:
    """Refuse a run that would let out more than this site has agreed to.

    Raises
    ------
    ConfigError
        The run pools embeddings, and this site was not started with
        ``share-embeddings=true``; or it hands features on, and without
        ``share-features=true``; or edges are to be bounded, and it adds no noise to
        them or keeps features that tell them.
    """
    task = resolved.task
    pools = isinstance(task, EmbeddingSettings) and task.evaluation == "pooled"
    if pools and not agrees(node, SHARE_EMBEDDINGS):
        raise ConfigError(
            "the run asks for the embeddings and labels of this site's graphs"
            ' (embedding.evaluation = "pooled"), which it does not share; set that key'
            ' to "local", or start the SuperNode with --node-config'
            f" '{SHARE_EMBEDDINGS}=true'"
        )
    hands_on = resolved.method.client.shares_features(resolved.params)
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


def own_folders(settings: RunSettings, node: NodeConfig) -> RunSettings:
    """Put the site's folders in place of the run's."""
    return replace(
        settings,
        data_dir=str(node.get("data-path", settings.data_dir)),
        state_dir=str(node.get("state-dir", settings.state_dir)),
    )
