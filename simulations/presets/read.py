"""Presets: named run-config overrides, kept as TOML files in this folder.

A file ``<name>.toml`` is one preset: ``description``, ``paper`` if there is one, and a
``[config]`` of run-config keys, where a nested table ``[config.gcfl]`` stands for keys
``gcfl.<key>``. A file ``<name>.family.toml`` makes many presets as the product of axes;
see ``family.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from fedgraph_flwr.errors import ConfigError, unknown_name
from fedgraph_flwr.rules import Value
from fedgraph_flwr.toml_files import read_toml

from .family import Preset, check_entries, expand, flatten

FOLDER = Path(__file__).parent
_FAMILY = ".family.toml"
_ENTRIES = ("description", "paper", "config")


def list_presets(folder: Path = FOLDER) -> dict[str, str]:
    """Map each preset's name to its description, names ascending."""
    return {name: preset.description for name, preset in _read_all(folder).items()}


def load_preset(
    name: str, folder: Path = FOLDER, *, also: Iterable[str] = ()
) -> dict[str, Value]:
    """Read the run-config overrides of a preset.

    Parameters
    ----------
    name : str
        File name without ``.toml``, or a name that a family makes.
    folder : Path
        Folder of the preset files.
    also : iterable of str
        Methods that could have been named instead; the nearest name may be of these.

    Returns
    -------
    dict
        Flat run-config keys and values. Whether the run config knows the keys and
        allows the values is checked when the run is configured.

    Raises
    ------
    ConfigError
        Unknown preset, a name made twice, or a file of the folder, whichever, that
        does not keep to the format.
    """
    presets = _read_all(folder)
    if name not in presets:
        cure = (
            "`python -m simulations.presets` lists them. Without a preset: name a"
            " method, and --set what differs from its defaults."
        )
        methods = list(also)
        what = "method or preset" if methods else "preset"
        raise ConfigError(unknown_name(what, name, [*methods, *presets], cure))
    return dict(presets[name].config)


def _read_all(folder: Path) -> Mapping[str, Preset]:
    """Every preset of the folder by name, names ascending."""
    paths = sorted(folder.glob("*.toml"))
    return _read_once(tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=8)
def _read_once(files: tuple[tuple[Path, int], ...]) -> Mapping[str, Preset]:
    """Read files, given with their times of change; families make many presets."""
    presets: dict[str, Preset] = {}
    origin: dict[str, Path] = {}
    for path, _ in files:
        for preset in _read(path):
            if preset.name in origin:
                raise ConfigError(
                    f"{path}: makes preset {preset.name!r}, which {origin[preset.name]}"
                    " has made already; names are unique in the folder: rename an"
                    " option or a file"
                )
            presets[preset.name] = preset
            origin[preset.name] = path
    return dict(sorted(presets.items()))


def _read(path: Path) -> list[Preset]:
    try:
        content = read_toml(path)
        if path.name.endswith(_FAMILY):
            return expand(content)
        if "axes" in content:
            raise ConfigError(f"a family's file is called <name>{_FAMILY}; rename it")
        check_entries("the preset", content, _ENTRIES)
        config = flatten("[config]", content.get("config", {}))
    except ConfigError as error:
        named = str(error).startswith(str(path))  # as errors of read_toml are
        raise ConfigError(str(error) if named else f"{path}: {error}") from error
    description = str(content.get("description", ""))
    return [Preset(name=path.stem, description=description, config=config)]
