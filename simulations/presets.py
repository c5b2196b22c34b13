"""Presets: named run-config overrides, kept as TOML files beside this module.

A file has a ``description`` and a ``[config]`` of run-config keys, where a nested
table ``[config.gcfl]`` stands for keys ``gcfl.<key>``; optionally
``extends = "_base"``, whose configuration it adds to, and ``paper`` / ``table``, which
the base may give. Names that begin with an underscore are bases and no presets.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import Value
from fedgraph_flwr.errors import ConfigError, unknown_name

FOLDER = Path(__file__).with_name("presets")
_ENTRIES = {"extends", "description", "paper", "table", "config"}


def list_presets(folder: Path = FOLDER) -> dict[str, str]:
    """Map each preset's name to its description, names ascending."""
    return {
        path.stem: str(_read(path).get("description", ""))
        for path in sorted(folder.glob("*.toml"))
        if not path.stem.startswith("_")
    }


def load_preset(name: str, folder: Path = FOLDER) -> dict[str, Value]:
    """Read the run-config overrides of a preset.

    Parameters
    ----------
    name : str
        File name without ``.toml``.
    folder : Path
        Folder of the preset files.

    Returns
    -------
    dict
        Flat run-config keys and values. Whether the run config knows the keys and
        allows the values is checked when the run is configured.

    Raises
    ------
    ConfigError
        Unknown preset or base, or a file that does not keep to the format.
    """
    names = [p.stem for p in folder.glob("*.toml") if not p.stem.startswith("_")]
    if name not in names:
        raise ConfigError(
            unknown_name("preset", name, names, f"Presets are the files in {folder}.")
        )
    return _load(folder / f"{name}.toml")


def _load(path: Path) -> dict[str, Value]:
    content = _read(path)
    base: dict[str, Value] = {}
    if "extends" in content:
        base_path = path.with_name(f"{content['extends']}.toml")
        # Bases do not extend one another: a preset is read in two files at most.
        if not base_path.stem.startswith("_") or path.stem.startswith("_"):
            raise ConfigError(
                f"{path}: only a preset may extend, and only a base, whose name begins"
                f" with an underscore; got extends = {content['extends']!r}"
            )
        if not base_path.is_file():
            raise ConfigError(f"{path}: extends {base_path}, which does not exist")
        base = _load(base_path)
    return {**base, **_flatten(path, content.get("config", {}))}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    if unknown := sorted(set(content) - _ENTRIES):
        raise ConfigError(
            f"{path}: unknown entries {', '.join(unknown)}; a preset has"
            f" {', '.join(sorted(_ENTRIES))}, and run-config keys stand in [config]"
        )
    return content


def _flatten(path: Path, config: Mapping[str, Any]) -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in config.items():
        entries = (
            {f"{key}.{k}": v for k, v in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
        for name, entry in entries.items():
            if not isinstance(entry, bool | int | float | str):
                raise ConfigError(
                    f"{path}: {name} must be a text, a number or true/false,"
                    f" got {entry!r}"
                )
            flat[name] = entry
    return flat
