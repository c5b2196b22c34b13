"""Retired names of run and node configs, and what to write instead.

Keys of a method's table that are gone stand in its ``RETIRED``.
"""

from __future__ import annotations

from collections.abc import Mapping

ONE = "delete it; only its default was ever used"
WEIGHTING = "set weighting, which every method that averages reads"
METHODS: Mapping[str, str] = {
    "fedavg-multitask": "set method to 'fedavg', which takes molecules too",
    "local-multitask": "set method to 'local', which takes molecules too",
    "fedper": "set method to 'fedavg' and shared-group to 'convs'",
}
KEYS: dict[str, str] = {
    "multitask.weighting": WEIGHTING,
    "node.patience": "set patience",
    "node.min-rounds": "set min-rounds",
    "stacked": "delete it; clients train one by one",
    "task-owners": "delete it; 'overlapping' gives a task to two clients",
}
_POLICY = "write `{}` into the file that node-config policy names (docs/policy.md)"
POLICY_KEYS: Mapping[str, str] = {
    "error-texts": "delete it; no text of an error leaves a site",
}
NODE_KEYS: Mapping[str, str] = {
    "edge-budget-max": _POLICY.format("edge-epsilon-max = ..."),
    "sealed-only": _POLICY.format("sealed-only = true"),
    "share-embeddings": _POLICY.format("pooled-evaluation = true"),
    "share-features": _POLICY.format("raw-features = true"),
}
