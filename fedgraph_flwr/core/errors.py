"""Errors a user can meet. Every message says what, got, allowed and cure."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from .words import shortened

_PLUGINS = ("plugins.", "examples.")
_MOST, _NEAREST = 40, 8
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
    names = sorted(known)
    table, dot, _ = got.partition(".")
    names = [n for n in names if dot and n.startswith(table + dot)] or names
    asked = _OTHERS.get(got.lower(), got.lower())
    if (plus := asked.removesuffix("-plus") + "+") in names:  # as presets say it
        asked = plus
    near = nearest(asked, names)
    hint = f" Did you mean {near!r}?" if near else ""
    listed = f"Known: {', '.join(names)}"
    if len(names) > _MOST:
        lower = {n.lower(): n for n in names}
        ranked = difflib.get_close_matches(asked, lower, n=_NEAREST, cutoff=0.0)
        listed = f"Nearest of {len(names)}: {', '.join(lower[n] for n in ranked)}"
    return f"unknown {what} {shortened(repr(got))}.{hint} {cure} {listed}."
