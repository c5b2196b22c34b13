"""Malformed run configs: refused before anything is computed, or harmless.

Part of the cases run at sites, whose operator wrote where data and state lie: there
the run's folders must not count.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from fedgraph_flwr.resolve import defaults

from ..inline import run_inline
from .cases import Place, small_run
from .mutations import TEXTS, value

_METHODS = (
    "gcfl+",
    "fedgkd",
    "fgcl-once",
    "update-clip",
    "spreadgnn-sealed",
    "fclg",
    "local",
    "fedstar",
    "fedsage+",
)
_FOLDERS = ("data-dir", "state-dir", "cache-dir")
_PATHS = (*_FOLDERS, "results-dir", "resume", "spreadgnn.edges-file")


def execute(rng: random.Random, place: Place, note: Callable[[str], None]) -> None:
    """Draw a run config, run it.

    Raises
    ------
    FedGraphError
        It is refused, or clients refuse it.
    """
    name = rng.choice(_METHODS)
    config = small_run(name, place.work, 2)
    if rng.random() < 0.25:
        _visit_sites(rng, place, config, note)
        return
    changed = {}
    for key in rng.sample(_keys(config["method"]), rng.choice([1, 1, 2])):
        changed[key] = _path(rng, place) if key in _PATHS else value(rng)
    if rng.random() < 0.05:
        changed["no-such-key"] = 1
    note(f"{name}: {_short(changed)}")
    run_inline({**config, **changed}, num_nodes=2)


def _visit_sites(
    rng: random.Random,
    place: Place,
    config: dict[str, Any],
    note: Callable[[str], None],
) -> None:
    """Run at two sites with their own folders, or without data."""
    chosen = rng.sample(_FOLDERS, rng.choice([1, 2]))
    changed: dict[str, Any] = {
        key: str(rng.choice([place.canary, place.canary / "new" / "folder"]))
        for key in chosen
    }
    if rng.random() < 0.3:
        changed["csv-label-columns"] = rng.choice(["", "a"])
    nodes: list[dict[str, Any]] = [
        {"clients": clients, "state-dir": str(place.work / f"site-{clients[0]}")}
        for clients in ("0,1", "2,3")
    ]
    has_data = rng.random() < 0.5
    for node in nodes if has_data else []:
        node["data-path"] = str(place.work / "molecules")
    note(f"sites, data-path {has_data}, {config['method']}: {_short(changed)}")
    run_inline({**config, **changed}, node_configs=nodes)


def _keys(method: str) -> list[str]:
    """Run-config keys that such a run reads: shared keys and the method's."""
    table = {"gcfl+": "gcfl", "fedsage+": "fedsage-plus"}.get(method, method)
    shared = [k for k in defaults() if "." not in k]
    return shared + 3 * [
        k for k in defaults() if k.startswith((f"{table}.", "privacy.", "embedding."))
    ]


def _path(rng: random.Random, place: Place) -> str:
    file = place.work / "home" / "file"
    file.write_text("")
    long = str(place.work / ("x" * 300))
    return rng.choice([*TEXTS, str(file), str(file / "below"), long, "/dev/null"])


def _short(changed: dict[str, Any]) -> str:
    shown = {
        k: v[:40] + "..." if isinstance(v, str) and len(v) > 43 else v
        for k, v in changed.items()
    }
    return ", ".join(
        f"{k}={'nan' if isinstance(v, float) and math.isnan(v) else repr(v)}"
        for k, v in shown.items()
    )
