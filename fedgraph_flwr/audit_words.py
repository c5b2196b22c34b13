"""What the audit logs of a site and of a server say of a message, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from flwr.app import RecordDict

from .errors import FedGraphError
from .wire import SERVER_ROUND, read_header, record_sizes

_NAMES = {"query": "roll call", "query.opening": "opening"}  # of types of messages


def name_message(kind: str) -> str:
    """Name a type of message as logs do."""
    return _NAMES.get(kind, kind)


def read_leniently(content: RecordDict) -> dict[str, Any]:
    """Read the header of a message; one that cannot be read is empty."""
    try:
        return dict(read_header(content))
    except FedGraphError:
        return {}


def round_of(header: Mapping[str, Any]) -> int | None:
    """Return the round of a header; None if it names none."""
    number = header.get(SERVER_ROUND)
    return number if type(number) is int else None


def record_bytes(content: RecordDict) -> dict[int, dict[str, int]]:
    """Bytes of each client's records, by kind."""
    found: dict[int, dict[str, int]] = {}
    for client, kind, size in record_sizes(content):
        found.setdefault(client, {})[kind] = size
    return found


def now() -> str:
    """Return the time of a line, in UTC and to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
