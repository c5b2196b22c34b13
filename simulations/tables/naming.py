"""Names of rows: the nearest preset, and the settings that differ from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from fedgraph_flwr.config import AUTO
from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.rules import Value

from ..presets import list_presets, load_preset

# Keys that say where and for how long to compute, not what: runs that differ only in
# these are repetitions of one another.
EXECUTION_KEYS = frozenset(
    {
        "method",
        "dataset",
        "seed",
        "split-seed",
        "data-dir",
        "results-dir",
        "state-dir",
        "cache-dir",
        "resume",
        "device",
        "torch-threads",
        "round-timeout-s",
        "roll-call-timeout-s",
        "min-fit-replies",
        "late-after-s",
    }
)


def row_name(method: str, dataset: str, settings: Mapping[str, Value]) -> str:
    """Name the nearest preset, and in brackets the settings that differ from it.

    Without a preset of this method and data set, the name is the method's, and the
    brackets hold the settings that are not its defaults.
    """
    preset, other = nearest_preset(method, dataset, settings)
    return with_settings(preset or f"{method} on {dataset}", other)


def nearest_preset(
    method: str, dataset: str, settings: Mapping[str, Value]
) -> tuple[str, dict[str, Value]]:
    """Find the preset with the fewest other settings.

    Parameters
    ----------
    method, dataset : str
    settings : mapping
        ``Run.settings``. Keys that an older run does not have count as their defaults.

    Returns
    -------
    name : str
        "" where no preset has this method and data set.
    other : dict
        Settings that differ from the preset's, or from the defaults without one.
    """
    plain = {k: v for k, v in defaults().items() if v != AUTO}
    filled = {**plain, **settings}
    presets = _presets(method, dataset) or {
        "": plain_settings(method, dataset) or plain
    }
    found = []
    for name, preset in presets.items():
        other = {k: v for k, v in filled.items() if k in preset and preset[k] != v}
        found.append((len(other), name, other))
    _, name, other = min(found, key=lambda entry: entry[:2])
    return name, {k: v for k, v in other.items() if k not in EXECUTION_KEYS}


@lru_cache(maxsize=64)
def _presets(method: str, dataset: str) -> Mapping[str, Mapping[str, Value]]:
    """Resolve every preset of a method on a data set: name -> settings."""
    found = {}
    for name in list_presets():
        config = {**defaults(), **load_preset(name)}
        if (config["method"], config["dataset"]) != (method, dataset):
            continue
        try:
            resolved = resolve(config).to_config()
        except ConfigError:  # data of a user that are not here
            continue
        found[name] = {k: v for k, v in resolved.items() if k not in EXECUTION_KEYS}
    return found


@lru_cache(maxsize=64)
def plain_settings(method: str, dataset: str) -> Mapping[str, Value]:
    """Resolve the default configuration; empty for names that are not known (now)."""
    try:
        config = {**defaults(), "method": method, "dataset": dataset}
        return resolve(config).to_config()
    except ConfigError:
        return {}


def with_settings(name: str, settings: Mapping[str, Value]) -> str:
    """Write settings in brackets behind a name."""
    words = ", ".join(f"{k}={as_text(v)}" for k, v in sorted(settings.items()))
    return f"{name} ({words})" if words else name


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Map each key to its last part, or to itself if two keys end in the same word."""
    keys = set(keys)
    count = Counter(key.rpartition(".")[2] for key in keys)
    shorts = {key: key.rpartition(".")[2] for key in keys}
    return {key: s if count[s] == 1 else key for key, s in shorts.items()}


def as_text(value: Value) -> str:
    """Write a value as TOML does, but texts without quotes."""
    return str(value).lower() if isinstance(value, bool) else f"{value}"
