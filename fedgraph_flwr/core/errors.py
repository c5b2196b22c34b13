"""Errors a user can meet. Every message says what, got, allowed and cure."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

_PLUGINS = ("plugins.", "examples.")
_CALLED = re.compile(r"(\w+)\.(\w+)\(\) (?:takes|missing|got)")
_MOST, _NEAREST, _LONGEST = 40, 8, 200
_OTHERS = {  # what other programs call it
    "clients": "num-clients",
    "epochs": "local-epochs",
    "layers": "num-layers",
    "lr": "learning-rate",
    "rounds": "num-server-rounds",
}


class FedGraphError(Exception):
    """Base of every error this application raises on purpose.

    ``PAGE`` explains errors of this class. Where the text must not leave a site, its
    name is what a coordinator reads instead.
    """

    PAGE: ClassVar[str] = "docs/failures.md"


class ConfigError(FedGraphError):
    """The run configuration is wrong; raised before any training."""

    PAGE = "docs/configuration.md"


class DataError(FedGraphError):
    """Data are missing, unreadable or unfit for the request."""

    PAGE = "docs/own-data.md"


class WireError(FedGraphError):
    """A message does not have the records or arrays that its receiver needs."""


class PrivacyBudgetError(FedGraphError):
    """A release would exceed the client's privacy budget, or mix what it protects."""

    PAGE = "docs/privacy.md"


class PolicyError(FedGraphError):
    """The policy of a site forbids what is asked, or cannot be read."""

    PAGE = "docs/privacy.md"


class StorageError(FedGraphError):
    """A file cannot be written."""


class RunFailedError(FedGraphError):
    """The federation could not go on: nodes missing, too few replies, dead actors."""


def full_reason(error: BaseException) -> str:
    """Class and text of an error, for simulation and for the log of a site.

    Of an error that was not raised on purpose also the line of the plug-in.
    """
    place = "" if isinstance(error, FedGraphError) else _place_in_plugin(error)
    return f"{type(error).__name__}: {error}{place and f' ({place})'}"


def _place_in_plugin(error: BaseException) -> str:
    """Last line of the bundle's plug-ins that an error came through; "" if of none."""
    passed = [
        f"{Path(frame.f_code.co_filename).name}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith(_PLUGINS)
    ]
    if not passed and (called := _CALLED.match(str(error))):
        ours = [m for n, m in sys.modules.items() if n.startswith(_PLUGINS)]
        for module in ours:  # arguments that its function does not take
            found = getattr(getattr(module, called[1], None), called[2], None)
            if code := getattr(found, "__code__", None):
                return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"
    return passed[-1] if passed else ""


def nearest(got: str, known: Iterable[str]) -> str:
    """Find the name that is most like another, in any capitals; "" if none is."""
    names = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(got.lower(), names, n=1)
    return names[near[0]] if near else ""


def unknown_name(what: str, got: str, known: Iterable[str], cure: str) -> str:
    """Word the message for a name that is not in a table: nearest match, cure, names.

    Of a table too long to print only the nearest names are given. Of a key with a dot,
    whose table is there, only keys of that table.
    """
    known = list(known)
    table, dot, _ = got.partition(".")
    known = [n for n in known if dot and n.startswith(table + dot)] or known
    names = {n.lower(): n for n in sorted(known)}
    asked = _OTHERS.get(got.lower(), got.lower())
    if (plus := asked.removesuffix("-plus") + "+") in names:  # as presets say it
        asked = plus
    near = nearest(asked, known)
    hint = f" Did you mean {near!r}?" if near else ""
    if len(names) > _MOST:
        ranked = difflib.get_close_matches(asked, names, n=_NEAREST, cutoff=0.0)
        listed = f"Nearest of {len(names)}: {', '.join(names[n] for n in ranked)}"
    else:
        listed = f"Known: {', '.join(sorted(known))}"
    shown = repr(got) if len(got) <= _LONGEST else f"{got[:_LONGEST]!r}... (cut short)"
    return f"unknown {what} {shown}.{hint} {cure} {listed}."


def wrong_return(owner: type, name: str, wanted: str, got: object) -> RunFailedError:
    """Make the error about what a method of a plug-in returns.

    Parameters
    ----------
    owner : type
        The plug-in's class.
    name : str
        Of the method.
    wanted : str
        What it must return, in words.
    got : object
    """
    return RunFailedError(
        f"{name}() of {owner.__name__} must return {wanted}, got a"
        f" {type(got).__name__}; mend it"
    )
