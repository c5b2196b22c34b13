"""Reads presets: TOML files, and families from which several presets come.

A file ``<name>.toml`` is one preset: ``description``, ``paper`` if there is one, and a
``[config]`` of run-config keys, where a nested table ``[config.gcfl]`` stands for keys
``gcfl.<key>``. A file ``<name>.family.toml`` makes many presets as the product of axes:

::

    description = "{row} on {data}{variant}"
    axes = ["row", "data", "variant"]

    [config]                                # of every preset
    split-seed = 0

    [row.fclg-h]                            # an option of axis "row"
    text = "FCLG-H"                         # stands for {row} in the description
    config = { method = "fclg", fclg.inter = "nodes" }

    [data.enzymes]
    text = "ENZYMES"
    config = { dataset = "ENZYMES" }

    [variant.""]                            # adds nothing to the preset's name

    [[variant.iid]]                         # cases of one option: the first that fits
    only.data = ["enzymes"]
    text = ", IID"
    config = { partition = "iid" }

    [[variant.iid]]
    text = ", IID"
    config = { partition = "iid-classwise" }

A preset takes one option of each axis. Its name is their names, joined by "-" in the
order of ``axes``. The config of later axes overrides that of earlier ones, and all
override ``[config]``. ``only`` restricts an option, or a case of it, to some options of
other axes; where no case of an option fits, the combination is no preset.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgraph_flwr.core.errors import ConfigError, unknown_name
from fedgraph_flwr.core.rules import Value, read_toml

FOLDER = Path(__file__).parent
_FAMILY_FILE = ".family.toml"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A name for run-config overrides."""

    name: str
    description: str
    config: dict[str, Value]


def flatten(place: str, config: Mapping[str, Any]) -> dict[str, Value]:
    """Write ``gcfl = {x = 1}`` as ``gcfl.x``; raise ConfigError at other values."""
    flat: dict[str, Value] = {}
    for key, value in config.items():
        entries = {key: value}
        if isinstance(value, dict):
            entries = {f"{key}.{k}": v for k, v in value.items()}
        for name, entry in entries.items():
            if not isinstance(entry, bool | int | float | str):
                raise ConfigError(
                    f"{name} must be a text, a number or true/false, got {entry!r}"
                    f" in {place}"
                )
            flat[name] = entry
    return flat


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
            "`fedgraph presets` lists them. Without a preset: name a method, and what"
            " differs from its defaults, KEY=VALUE."
        )
        methods = list(also)
        what = "method or preset" if methods else "preset"
        raise ConfigError(unknown_name(what, name, [*methods, *presets], cure))
    return dict(presets[name].config)


@lru_cache(maxsize=8)
def _read_all(folder: Path) -> Mapping[str, Preset]:
    """Read every preset of the folder once, by name, names ascending."""
    presets: dict[str, Preset] = {}
    origin: dict[str, Path] = {}
    for path in sorted(folder.glob("*.toml")):
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


def _read(path: Path) -> Iterator[Preset]:
    """Read the presets of a file.

    Raises
    ------
    ConfigError
        The file does not keep to the format.
    """
    content = read_toml(path)
    try:
        if path.name.endswith(_FAMILY_FILE):
            yield from _expand(content)
        else:
            yield _preset(path.stem, **content)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        what = error if isinstance(error, ConfigError) else repr(error)
        raise ConfigError(
            f"{path}: not a preset ({what}); run-config keys stand in config, and a"
            f" file with axes is called <name>{_FAMILY_FILE}: see"
            " simulations/presets/read.py"
        ) from error


def _preset(
    name: str,
    *,
    config: Mapping[str, Any] | None = None,
    description: str = "",
    paper: str = "",  # of readers of the file
) -> Preset:
    del paper
    flat = flatten("[config]", config or {})
    return Preset(name=name, description=description, config=flat)


def _expand(content: Mapping[str, Any]) -> Iterator[Preset]:
    """Make the presets of a family, in the order of the options, last axis fastest."""
    given = dict(content)
    options: dict[str, dict[str, list[dict[str, Any]]]] = {
        axis: {
            option: cases if isinstance(cases, list) else [cases]
            for option, cases in given.pop(axis).items()
        }
        for axis in given.pop("axes")
    }
    common = _preset("", **given)
    for axis, cases in ((a, c) for a, o in options.items() for c in o.values()):
        for case in cases:
            _check(axis, case, options)
    for names in product(*options.values()):
        chosen = dict(zip(options, names, strict=True))
        found = {
            axis: case
            for axis, option in chosen.items()
            for case in _fitting(options[axis][option], chosen)[:1]
        }
        if len(found) == len(options):
            config = dict(common.config)
            for axis, case in found.items():
                config |= flatten(f"[{axis}]", case.get("config", {}))
            texts = {axis: case.get("text", "") for axis, case in found.items()}
            name = "-".join(filter(None, names))
            words = common.description.format(**texts)
            yield Preset(name=name, description=words, config=config)


def _check(axis: str, case: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise ValueError at misspelt entries, which would change other presets."""
    if unknown := sorted(set(case) - {"text", "config", "only"}):
        raise ValueError(f"unknown entries {unknown} of axis {axis}")
    for other, names in case.get("only", {}).items():
        if unknown := sorted(set(names) - set(options[other])):
            raise ValueError(f"only has {unknown}, allowed are {[*options[other]]}")


def _fitting(
    cases: list[dict[str, Any]], chosen: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Cases that the options of all axes allow."""
    return [
        case
        for case in cases
        if all(chosen[axis] in names for axis, names in case.get("only", {}).items())
    ]


def show(
    part: Annotated[str, typer.Argument(help="Part of a preset's name.")] = "",
) -> int:
    """List presets whose name contains PART: name and description."""
    found = {n: text for n, text in list_presets().items() if part in n}
    width = max(map(len, found), default=0)
    for name, description in found.items():
        sys.stdout.write(f"{name:<{width}}  {description}\n")
    return 0 if found else 1
