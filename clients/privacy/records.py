"""Small JSON files on a client's disk that survive crashes and lose no charge."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside ``path``: two processes cannot lose a charge."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the file; it is on the disk when this returns."""
    partial = path.with_suffix(".tmp")
    with partial.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:  # the new name itself must outlive a power cut
        os.fsync(folder)
    finally:
        os.close(folder)
