"""Plug-ins: methods and data sets of your own, named in a run config."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .config import Settings, build
from .errors import ConfigError, unknown_name
from .files import project_root
from .rules import Rule, Value, setting, shown, text, toml_value

PLUGINS, EXAMPLES = "plugins", "examples"  # folders of the bundle
NAMING_KEYS = ("method", "dataset")  # of the run config
_ROOT = project_root()
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_SPEC = re.compile(rf"({_NAME}(?:\.{_NAME})*):({_NAME})")
_UNSENT = {"build", "dist", ".venv"}  # folders that .gitignore names
_BUILT_IN = "tu:"  # of data sets: no module
T = TypeVar("T")


def _sha256() -> Any:
    words = "64 hexadecimal digits, or empty"
    return setting("", Rule(str, pattern="([0-9a-f]{64})?", words=words))


@dataclass(frozen=True, kw_only=True)
class PluginSettings(Settings):
    """The keys of a run config that concern plug-ins.

    Flower refuses keys that the bundle does not declare, and no bundle can declare a
    plug-in's: its parameters share ``params``, the inside of an inline table of TOML.
    """

    TABLE = "plugin"

    params: str = text("")
    """Parameters of your own method: `"mu = 0.1, mode = 'fast'"`."""
    method_sha256: str = _sha256()
    """Source that the method's plug-in must have; empty takes any."""
    dataset_sha256: str = _sha256()
    """Source that the data set's plug-in must have; empty takes any."""


def is_plugin(name: str) -> bool:
    """Whether a method or data set is that of a plug-in, by its name."""
    return ":" in name and not name.startswith(_BUILT_IN)


def named_in(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Modules of the plug-ins that a run config names, by the key that names them.

    Raises
    ------
    ConfigError
        A name is not ``module:NAME``.
    """
    names = {key: str(run_config.get(key, "")) for key in NAMING_KEYS}
    return {key: split(name)[0] for key, name in names.items() if is_plugin(name)}


def split(name: str) -> tuple[str, str]:
    """Split ``module:NAME``.

    Raises
    ------
    ConfigError
        It is not of that form.
    """
    match = _SPEC.fullmatch(name)
    if match is None:
        raise ConfigError(
            "a plug-in is named module:NAME, as fgx:METHOD for METHOD in"
            f" plugins/fgx.py (letters, digits, _ and dots), got {shown(name)}; give"
            " the module's name, not a path"
        )
    return match[1], match[2]


def origin(module: str) -> Path | None:
    """Return the file of a plug-in that the bundle carries; None if it does not."""
    parts = module.split(".")
    for path in (_ROOT.joinpath(PLUGINS, *parts), _ROOT.joinpath(*parts)):
        if path.relative_to(_ROOT).parts[0] not in (PLUGINS, EXAMPLES):
            continue
        for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def load(name: str, kind: type[T]) -> T:
    """Import a plug-in, once per process, and return the object that it names.

    Raises
    ------
    ConfigError
        No such module, or it cannot be imported; it lacks the object, or the object is
        not of ``kind``.
    """
    module, attribute = split(name)
    found = _import(module)
    fitting = sorted(k for k, v in vars(found).items() if isinstance(v, kind))
    value = getattr(found, attribute, None)
    if isinstance(value, kind):
        return value
    got = f"it is a {type(value).__name__}" if value is not None else "it has none"
    has = f"; what it has: {', '.join(fitting)}" if fitting else ""
    raise ConfigError(
        f"plug-in {name!r} must be a {kind.__name__} of module {module!r}, but"
        f" {got}{has}; write {attribute} = {kind.__name__}(...) there, or name another"
    )


def one_name(name: str, kind: type[T]) -> str:
    """Return the same name for every spelling of a plug-in's name.

    ``plugins.fgx:DATA`` and ``fgx.__init__:DATA`` are ``fgx:DATA``, and of several
    names of one object in a module the first counts.
    """
    module, value = split(name)[0], load(name, kind)
    attribute = min(k for k, v in vars(_import(module)).items() if v is value)
    if (file := origin(module)) is not None:
        parts = file.relative_to(_ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        module = ".".join(parts[1:] if parts[0] == PLUGINS and parts[1:] else parts)
    return f"{module}:{attribute}"


@cache
def sha256(module: str) -> str:
    """SHA-256 of a plug-in's source, as it is when this process first asks.

    The source is the module's file, or those Python files of its package that travel
    with a run.
    """
    file, is_ours = Path(str(_import(module).__file__)).resolve(), origin(module)
    depth = module.count(".") + (file.name == "__init__.py")
    base = _ROOT if is_ours else file.parents[depth]
    parts = file.relative_to(base).parts
    package = parts[: 2 if is_ours else 1]  # below plugins/ or examples/
    files = [file]
    if len(parts) > len(package):
        beside = filter(Path.is_file, base.joinpath(*package).rglob("*.py"))
        files = [p for p in beside if not (is_ours and _why_left_out(p))]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(base).as_posix()}\0".encode())
        digest.update(f"{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def _import(module: str) -> ModuleType:
    file, name = origin(module), module
    cure = f"correct {file}"
    if file is not None:
        if why := _why_left_out(file):
            raise ConfigError(
                f"plug-in {module!r}: {file} {why}, as Flower's bundle carries no"
                " links, no tests and nothing that .gitignore names"
            )
        parts = file.relative_to(_ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    elif find_spec(first := module.partition(".")[0]) is None:
        cure = (
            f"put {first}.py into {_ROOT / PLUGINS}, which travels with a run, or"
            f" install it wherever the run computes (here: {sys.executable}), and start"
            " Flower's SuperLink anew"
        )
    try:
        found = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"plug-in {module!r} cannot be imported: {why}; {cure}"
        ) from error
    loaded = getattr(found, "__file__", None)
    if loaded is None or (file is not None and Path(loaded).resolve() != file):
        raise ConfigError(
            f"plug-in {module!r} was imported from {loaded}, expected"
            f" {file or 'a file of Python source'}; keep other packages of that name"
            " off Python's path"
        )
    return found


def _why_left_out(file: Path) -> str:
    """Say why Flower leaves a file out of its bundle, and the cure; "" if it does not.

    The names are those of Flower's ``FAB_EXCLUDE_PATTERNS`` and of ``.gitignore``.
    """
    if file.resolve() != file:
        return f"is a link to {file.resolve()}; put the file itself there"
    if file.name.startswith("test_") or file.name.endswith("_test.py"):
        return "is named as a test is; rename it"
    if unsent := _UNSENT.intersection(file.relative_to(_ROOT).parts):
        return f"lies in a folder {min(unsent)}; rename that"
    return ""


def forget(*modules: str) -> None:
    """Unload modules and all plug-ins of the bundle, as if this process just began."""
    gone = (PLUGINS, EXAMPLES, *modules)
    for name in [*sys.modules]:
        if name in gone or name.startswith(tuple(f"{m}." for m in gone)):
            del sys.modules[name]
    _import.cache_clear()
    sha256.cache_clear()
    importlib.invalidate_caches()


# Parameters --------------------------------------------------------------------------


def read_params(given: str) -> dict[str, Value]:
    """Read ``plugin.params``.

    Raises
    ------
    ConfigError
        It is not the inside of an inline table, or a value is a list or a table.
    """
    try:
        found = tomllib.loads(f"params = {{{given}}}")
        values: dict[str, Value] = found.pop("params")
        is_plain = all(isinstance(v, bool | int | float | str) for v in values.values())
        if found or not is_plain:
            raise ValueError("give each a text, number, true or false")
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            "plugin.params must be key = value, separated by commas, on one line, texts"
            " in quotes, as in \"mu = 0.1, mode = 'fast'\"; got"
            f" {shown(given)}: {error}"
        ) from error
    return values


def write_params(params: Settings) -> str:
    """Write all parameters as :func:`read_params` reads them."""
    pairs = params.to_config().items()
    return ", ".join(f"{_key(type(params), k)} = {toml_value(v)}" for k, v in pairs)


def build_params(
    cls: type[Settings], given: str, automatic: Mapping[str, Value]
) -> Settings:
    """Build a plug-in's own parameters from ``plugin.params``.

    Parameters
    ----------
    cls : type
        Table of the method; its keys need no table's name before them here.
    automatic : mapping
        Values that replace ``"auto"``, by the table's own keys.

    Raises
    ------
    ConfigError
        Unknown parameter, wrong type, value out of range.
    """
    values, full = read_params(given), {_key(cls, k): k for k in cls.config_fields()}
    if unknown := next((key for key in values if key not in full), None):
        cure = "Correct plugin.params in the run config."
        if not full:
            raise ConfigError(
                f"plugin.params sets {unknown!r}, but the method has no parameters of"
                " its own; leave plugin.params out of the run config"
            )
        raise ConfigError(unknown_name("parameter", unknown, full, cure))
    config = {**cls.defaults(), **{full[key]: value for key, value in values.items()}}
    try:
        return build(cls, config, automatic)
    except ConfigError as error:
        raise ConfigError(f"plugin.params: {error}, as plugin.params") from error


def _key(cls: type[Settings], full: str) -> str:
    return full.removeprefix(f"{cls.TABLE}.") if cls.TABLE else full


def check_pins(given: PluginSettings, run_config: Mapping[str, Any]) -> PluginSettings:
    """Return the settings with the hashes of the plug-ins' sources.

    Raises
    ------
    ConfigError
        A hash is given, and the source has another, or there is no plug-in.
    """
    modules = named_in(run_config)
    found = {key: sha256(module) for key, module in modules.items()}
    pins = {f"{key}_sha256": found.get(key, "") for key in NAMING_KEYS}
    for key, got in zip(NAMING_KEYS, pins.values(), strict=True):
        wanted = getattr(given, f"{key}_sha256")
        if wanted and wanted != got:
            whose = f"{modules[key]!r} has {got}" if got else f"{key} is not a plug-in"
            raise ConfigError(
                f"plugin.{key}-sha256 is {wanted}, but {whose}: restore that source,"
                f" or leave plugin.{key}-sha256 empty to take the source as it is"
            )
    return replace(given, **pins)
