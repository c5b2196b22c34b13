"""Small JSON files on a client's disk that survive crashes and lose no charge."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgraph_flwr.files import make_private, replacing, unwritable

_CHECKSUM = "sha256"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside ``path``: two processes cannot lose a charge.

    Raises
    ------
    StorageError
        There is no place for it.
    """
    beside = path.with_suffix(".lock")
    try:
        make_private(path.parent)
        lock = beside.open("w")
    except OSError as error:
        raise unwritable(beside, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file; it is on the disk when this returns."""
    text = json.dumps(content)
    with replacing(path) as partial:
        partial.write_text(json.dumps({**content, _CHECKSUM: _digest(text)}))


def read_record(path: Path) -> dict[str, Any]:
    """Read what :func:`write_record` wrote.

    Raises
    ------
    OSError
    ValueError
        As of :func:`parse_record`.
    """
    return parse_record(path.read_text())


def parse_record(text: str) -> dict[str, Any]:
    """Make sense of a record's text.

    Raises
    ------
    ValueError
        It is no JSON, or not what was written. Records of earlier versions have no
        checksum, and count all the same.
    """
    stored = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError("it holds no table")
    checksum = stored.pop(_CHECKSUM, None)
    if checksum not in (None, _digest(json.dumps(stored))):
        raise ValueError("its checksum is not that of its contents")
    return stored


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
