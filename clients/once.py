"""Files that are written once: the first process writes, all others read."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.files import is_there, make_private, sync


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise a DataError that names a site's file if it cannot be read or written.

    Raises
    ------
    DataError
        In place of what the system raises.
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be used: {error}; {_cure(error)}") from error


def is_kept(path: Path) -> bool:
    """Whether a file of a site is there.

    Raises
    ------
    DataError
        Nobody can tell.
    """
    with usable(path):
        return is_there(path)


def _cure(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR):
        return (
            "let this user read and write it, or set state-dir to a folder that can be"
            " written: in the run config, or in the node-config of a site"
        )
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room on that disk, then resume"
    return "restore it, or start a new run"


def write_once(path: Path, content: bytes, *, is_lasting: bool = False) -> bytes:
    """Write ``path`` unless it is there, for the owner's eyes only.

    A reader finds it whole or not at all; of several writers at once one wins.

    Parameters
    ----------
    path : path
    content : bytes
    is_lasting : bool
        Wait until it is on the disk, so that it outlives a power cut.

    Returns
    -------
    bytes
        What the file holds now: ``content``, or what was there before.

    Raises
    ------
    DataError
        It cannot be read or written.
    """
    with usable(path):
        if is_there(path):
            return path.read_bytes()
        make_private(path.parent)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                if is_lasting:
                    file.flush()
                    os.fsync(file.fileno())
            os.link(partial, path)
            if is_lasting:
                sync(path.parent)
        except FileExistsError:  # another was first
            pass
        finally:
            partial.unlink()
        return path.read_bytes()
