"""The command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..config import AUTO
from ..errors import FedGraphError
from ..resolve import defaults, resolve
from ..rules import Value
from ..toml_files import toml_value

# They say where files are and what a run left behind, not what it computes.
_PLACES = {
    *("results-dir", "state-dir", "cache-dir", "resume", "tracker"),
    "checkpoint-every",  # which could be 0 once
}


def replay_command(config: Mapping[str, Any]) -> str:
    """Write the command line of a run with this resolved config.

    Keys that the method and the data set would choose alike are left out. If that
    cannot be checked here, as for a plug-in that is not installed, all keys stand.
    """
    wanted = {k: v for k, v in config.items() if k not in _PLACES}
    method = str(wanted.pop("method", "?"))
    chosen = _chosen(method, wanted)
    parts = ["python", "-m", "simulations.run", method, "--engine", "inline"]
    for key, value in sorted(chosen.items()):
        parts += ["--set", f"{key}={toml_value(value)}"]
    return shlex.join(parts)


def _chosen(method: str, wanted: Mapping[str, Any]) -> dict[str, Value]:
    """Keys that have to be set to get the config ``wanted``."""
    known = defaults()
    explicit = {k: v for k, v in wanted.items() if known.get(k) != v}
    few = {k: v for k, v in explicit.items() if known.get(k) != AUTO}
    try:
        found = _resolved(method, few, wanted)
        differ = {k: v for k, v in explicit.items() if found.get(k) != v}
        few |= differ
        if _resolved(method, few, wanted) == wanted:
            return few
    except (FedGraphError, KeyError, TypeError, ValueError, ImportError):
        pass
    return explicit


def _resolved(
    method: str, chosen: Mapping[str, Value], wanted: Mapping[str, Any]
) -> dict[str, Value]:
    config = resolve({**defaults(), "method": method, **chosen}).to_config()
    return {k: v for k, v in config.items() if k in wanted}
