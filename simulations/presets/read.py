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


def flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``gcfl = {x = 1}`` as ``gcfl.x``."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{k}": v for k, v in value.items()}
        else:
            flat[key] = value
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
        Unknown preset.
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
    found = [preset for path in folder.glob("*.toml") for preset in _read(path)]
    return {p.name: p for p in sorted(found, key=lambda p: p.name)}


def _read(path: Path) -> Iterator[Preset]:
    """Make the presets of a file, in the order of the options, last axis fastest."""
    given = read_toml(path)
    common, words = flatten(given.get("config", {})), given.get("description", "")
    if not path.name.endswith(_FAMILY_FILE):
        yield Preset(name=path.stem, description=words, config=common)
        return
    axes: dict[str, dict[str, Any]] = {axis: given[axis] for axis in given["axes"]}
    for names in product(*axes.values()):
        chosen = dict(zip(axes, names, strict=True))
        found = {axis: _case(axes[axis][name], chosen) for axis, name in chosen.items()}
        if None in found.values():
            continue
        config, texts = dict(common), dict[str, str]()
        for axis, case in found.items():
            config |= flatten((case or {}).get("config", {}))
            texts[axis] = (case or {}).get("text", "")
        name = "-".join(filter(None, names))
        yield Preset(name=name, description=words.format(**texts), config=config)


def _case(option: Any, chosen: Mapping[str, str]) -> dict[str, Any] | None:
    """First case of an option that the options of all axes allow."""
    for case in option if isinstance(option, list) else [option]:
        only: Mapping[str, list[str]] = case.get("only", {})
        if all(chosen[axis] in names for axis, names in only.items()):
            return dict(case)
    return None


def show(
    part: Annotated[str, typer.Argument(help="Part of a preset's name.")] = "",
) -> int:
    """List presets whose name contains PART: name and description."""
    found = {n: text for n, text in list_presets().items() if part in n}
    width = max(map(len, found), default=0)
    for name, description in found.items():
        sys.stdout.write(f"{name:<{width}}  {description}\n")
    return 0 if found else 1
