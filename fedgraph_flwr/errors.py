"""Errors a user can meet. Every message says what, got, allowed and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_MOST, _NEAREST, _LONGEST = 40, 8, 200
_OTHERS = {  # what other programs call it, and presets, whose names have no "+"
    "clients": "num-clients",
    "epochs": "local-epochs",
    "fedsage-plus": "fedsage+",
    "gcfl-plus": "gcfl+",
    "layers": "num-layers",
    "lr": "learning-rate",
    "rounds": "num-server-rounds",
}


class FedGraphError(Exception):
    """Base of every error this application raises on purpose.

    Parameters
    ----------
    message : str
    public : str
        What a site may tell others: made without a value, a name of a column or a path
        of its data; "" where nothing is, see ``disclosure``.
    """

    def __init__(self, message: str = "", *, public: str = "") -> None:
        super().__init__(message)
        self.public = public


class ConfigError(FedGraphError):
    """The run configuration is wrong; raised before any training."""


class DataError(FedGraphError):
    """Data are missing, unreadable or unfit for the request."""


class WireError(FedGraphError):
    """A message does not have the records or arrays that its receiver needs."""


class PrivacyBudgetError(FedGraphError):
    """A release would exceed the client's privacy budget, or mix what it protects."""


class PolicyError(FedGraphError):
    """The policy of a site forbids what is asked, or cannot be read.

    Parameters
    ----------
    message : str
    public : str
        As of the base; the message itself if none is given, so that it holds nothing
        of a site but what its policy says.
    """

    def __init__(self, message: str = "", *, public: str = "") -> None:
        super().__init__(message, public=public or message)


class StorageError(FedGraphError):
    """A file cannot be written."""


class RunFailedError(FedGraphError):
    """The federation could not go on: nodes missing, too few replies, dead actors."""


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
    near = nearest(asked, known)
    hint = f" Did you mean {near!r}?" if near else ""
    if len(names) > _MOST:
        ranked = difflib.get_close_matches(asked, names, n=_NEAREST, cutoff=0.0)
        listed = f"Nearest of {len(names)}: {', '.join(names[n] for n in ranked)}"
    else:
        listed = f"Known: {', '.join(sorted(known))}"
    told = repr(got) if len(got) <= _LONGEST else f"{got[:_LONGEST]!r}... (cut short)"
    return f"unknown {what} {told}.{hint} {cure} {listed}."


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
