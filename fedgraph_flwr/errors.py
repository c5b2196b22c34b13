"""Errors a user can meet. Every message says what, got, allowed and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedGraphError(Exception):
    """Base of every error this application raises on purpose."""


class ConfigError(FedGraphError):
    """The run configuration is wrong; raised before any training."""


class DataError(FedGraphError):
    """Data are missing, unreadable or unfit for the request."""


class WireError(FedGraphError):
    """A message does not have the records or arrays that its receiver needs."""


class RunFailedError(FedGraphError):
    """The federation could not go on: nodes missing, too few replies, dead actors."""


def unknown_name(what: str, got: str, known: Iterable[str], cure: str) -> str:
    """Word the message for a name that is not in a table, with the nearest match."""
    names = sorted(known)
    near = difflib.get_close_matches(got.lower(), [n.lower() for n in names], n=1)
    match = next((n for n in names if near and n.lower() == near[0]), None)
    hint = f" Did you mean {match!r}?" if match else ""
    return f"unknown {what} {got!r}.{hint} Known: {', '.join(names)}. {cure}"
