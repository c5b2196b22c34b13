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
Error messages lack the file's name, which the reader of the file adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from string import Formatter
from typing import Any, TypeGuard

from fedgraph_flwr.core.errors import ConfigError, unknown_name
from fedgraph_flwr.core.rules import Value, read_toml

_FAMILY = ("description", "paper", "config", "axes")
_CASE = ("text", "config", "only")
_EMPTY = '""'


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


@dataclass(frozen=True, kw_only=True)
class _Case:
    """Settings that an option adds if the other axes take one of ``only``'s options."""

    place: str
    text: str
    config: Mapping[str, Value]
    only: Mapping[str, list[str]]

    def fits(self, options: Mapping[str, str]) -> bool:
        """Whether the case holds, given the option of every axis."""
        return all(options[axis] in allowed for axis, allowed in self.only.items())


_Axes = Mapping[str, Mapping[str, list[_Case]]]  # axis -> option -> cases


def expand(content: Mapping[str, Any]) -> list[Preset]:
    """Make the presets of a family.

    Parameters
    ----------
    content : mapping
        What stands in its file.

    Returns
    -------
    list of Preset
        In the order of the options, the last axis fastest. Nothing keeps two
        combinations from having one name.

    Raises
    ------
    ConfigError
        The content does not keep to the format, or a part of it makes no preset.
    """
    axes = _read_axes(content)
    common = flatten("[config]", content.get("config", {}))
    template = str(content.get("description", ""))
    presets, used = [], set()
    for name, cases in _combinations(axes):
        config = dict(common)
        for case in cases.values():
            config |= case.config
            used.add(case.place)
        description = _describe(template, cases)
        presets.append(Preset(name=name, description=description, config=config))
    _check_used(axes, used)
    return presets


def _combinations(axes: _Axes) -> Iterator[tuple[str, dict[str, _Case]]]:
    """Yield each preset's name with the case of each axis."""
    for names in product(*axes.values()):
        options = dict(zip(axes, names, strict=True))
        cases = {
            axis: case
            for axis, option in options.items()
            if (case := next((c for c in axes[axis][option] if c.fits(options)), None))
        }
        if len(cases) < len(axes):
            continue
        if not any(names):
            raise ConfigError(
                'a preset has no name, since all its options are ""; name one of them,'
                " or keep them apart by only"
            )
        yield "-".join(filter(None, names)), cases


def _describe(template: str, cases: Mapping[str, _Case]) -> str:
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template)} - {None}
        if fields <= set(cases):
            return template.format(**{axis: case.text for axis, case in cases.items()})
    except ValueError:  # a brace without its other, or a format
        pass
    allowed = ", ".join(f"{{{axis}}}" for axis in cases)
    raise ConfigError(f"description may have {allowed} in braces, got {template!r}")


def _check_used(axes: _Axes, used: set[str]) -> None:
    for _, case in _all_cases(axes):
        if case.place not in used:
            raise ConfigError(
                f"{case.place} makes no preset: its only, or that of other options,"
                " rules it out, or an earlier case always fits; correct only, or"
                " delete it"
            )


def _all_cases(axes: _Axes) -> Iterator[tuple[str, _Case]]:
    """Yield every case with its axis."""
    for axis, options in axes.items():
        for cases in options.values():
            for case in cases:
                yield axis, case


def _read_axes(content: Mapping[str, Any]) -> _Axes:
    names = content.get("axes")
    if not _are_names(names) or set(names) & set(_FAMILY):
        raise ConfigError(
            "axes must list the axes in the order of preset names, each once and none"
            f" called {', '.join(_FAMILY)}, as in axes = ['method', 'data'];"
            f" got {names!r}"
        )
    check_entries("the family", content, (*_FAMILY, *names))
    axes: dict[str, dict[str, list[_Case]]] = {}
    for axis in names:
        options = need_table(f"[{axis}]", content.get(axis, {}))
        if not options:
            raise ConfigError(
                f"axis {axis!r} has no options; add a table [{axis}.<option>] for"
                " each, or take it out of axes"
            )
        axes[axis] = {
            option: _read_cases(f"[{axis}.{option or _EMPTY}]", entry)
            for option, entry in options.items()
        }
    for axis, case in _all_cases(axes):
        _check_only(case, {a: list(o) for a, o in axes.items() if a != axis})
    return axes


def _read_cases(place: str, entry: object) -> list[_Case]:
    """Read an option: one table, or a list of them."""
    if not isinstance(entry, list):
        return [_read_case(place, entry)]
    return [_read_case(f"{place} case {i}", case) for i, case in enumerate(entry, 1)]


def _read_case(place: str, entry: object) -> _Case:
    table = need_table(place, entry)
    check_entries(place, table, _CASE)
    return _Case(
        place=place,
        text=str(table.get("text", "")),
        config=flatten(f"{place} config", table.get("config", {})),
        only=need_table(f"{place} only", table.get("only", {})),
    )


def _check_only(case: _Case, others: Mapping[str, list[str]]) -> None:
    """Refuse names that ``others``, the other axes and their options, do not have."""
    for axis, options in case.only.items():
        known = others.get(axis)
        if known is None:
            cure = f"name one of the other axes: {', '.join(others)}"
        elif not _are_names(options) or set(options) - set(known):
            cure = f"list some of {', '.join(o or _EMPTY for o in known)}"
        else:
            continue
        raise ConfigError(f"{case.place} only has {axis} = {options!r}; {cure}")


def _are_names(value: object) -> TypeGuard[list[str]]:
    """Whether it is a list of different texts, and not empty."""
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and 0 < len(value) == len(set(value))
    )


FOLDER = Path(__file__).parent
_FAMILY_FILE = ".family.toml"
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
        if path.name.endswith(_FAMILY_FILE):
            return expand(content)
        if "axes" in content:
            raise ConfigError(
                f"a family's file is called <name>{_FAMILY_FILE}; rename it"
            )
        check_entries("the preset", content, _ENTRIES)
        config = flatten("[config]", content.get("config", {}))
    except ConfigError as error:
        named = str(error).startswith(str(path))  # as errors of read_toml are
        raise ConfigError(str(error) if named else f"{path}: {error}") from error
    description = str(content.get("description", ""))
    return [Preset(name=path.stem, description=description, config=config)]
