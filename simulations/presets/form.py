"""Parts that both kinds of preset files have in common.

Their error messages lack the file's name, which the reader of the file adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.errors import ConfigError
from fedgraph_flwr.rules import Value


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A name for run-config overrides."""

    name: str
    description: str
    config: dict[str, Value]


def need_table(place: str, value: object) -> dict[str, Any]:
    """Return ``value`` if it is a table, else raise ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(f"{place} must be a table, got {value!r}")
    return value


def check_entries(place: str, table: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Raise ConfigError if a table has other entries than ``allowed``."""
    if unknown := sorted(set(table) - set(allowed)):
        raise ConfigError(
            f"unknown entries {', '.join(unknown)} in {place}; allowed are"
            f" {', '.join(allowed)}, and run-config keys stand in config"
        )


def flatten(place: str, config: object) -> dict[str, Value]:
    """Write ``gcfl = {x = 1}`` as ``gcfl.x``; raise ConfigError at other values."""
    flat: dict[str, Value] = {}
    for key, value in need_table(place, config).items():
        entries = (
            {f"{key}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
        for name, entry in entries.items():
            if not isinstance(entry, bool | int | float | str):
                raise ConfigError(
                    f"{name} must be a text, a number or true/false, got {entry!r}"
                    f" in {place}"
                )
            flat[name] = entry
    return flat
