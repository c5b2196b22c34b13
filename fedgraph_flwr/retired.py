"""Retired names of run and node configs, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

_ONE = "delete it; only its default was ever used"
_WEIGHTING = "set weighting, which every method that averages reads"
METHODS: Mapping[str, str] = {
    "fedavg-multitask": "set method to 'fedavg', which takes molecules too",
    "local-multitask": "set method to 'local', which takes molecules too",
    "fclg-local": "set method to 'local' and task to 'graph-embedding'",
    "fedper": "set method to 'fedavg' and shared-group to 'convs'",
}
KEYS: Mapping[str, str] = {
    "gcfl.history-reset": _ONE,
    "gcfl.mean-norm-weighting": _ONE,
    "infograph.moon-temperature": _ONE,
    "mvgrl.moon-temperature": _ONE,
    "mvgrl.ppr-alpha": _ONE,
    "mvgrl.threshold": _ONE,
    "fgcl.detach-negatives": _ONE,
    "fgcl.partial": _ONE,
    "fgcl.weighting": _WEIGHTING,
    "fedgmtl.weighting": _WEIGHTING,
    "multitask.weighting": _WEIGHTING,
    "node.patience": "set patience",
    "node.min-rounds": "set min-rounds",
    "fedgmtl.reg-rows": _ONE,
    "fedgmtl.encoder": "set multitask.encoder",
    "fedgmtl.regression-loss": "set multitask.regression-loss",
    "spreadgnn.encoder": "set multitask.encoder",
    "spreadgnn.regression-loss": "set multitask.regression-loss",
    "fedpub.penalties": _ONE,
    "fedpub.proximal-weight": "delete it; it weighed a penalty that was off",
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
