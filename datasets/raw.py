"""Places of raw files: below the folder that a user names, or downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.errors import DataError, nearest

from .cache import locked, scratch_folder, unusable

DATA_ENV = "FEDGRAPH_DATA"


@dataclass(frozen=True)
class DataFolder:
    """The folder with raw files that a user named.

    Parameters
    ----------
    root : Path
    says : str
        The setting or environment variable that names it, and what it says.
    """

    root: Path
    says: str

    def places(self, collection: str, below: str | Path) -> list[Path]:
        """Places of a data set: below the folder of its collection, or directly."""
        return [self.root / collection / below, self.root / below]


def data_folder(data_dir: str) -> DataFolder | None:
    """Find the folder with raw files; None means that they are to be downloaded.

    Parameters
    ----------
    data_dir : str
        What the setting says; "" falls back to FEDGRAPH_DATA. If either is set,
        nothing is downloaded.

    Raises
    ------
    DataError
        It is no folder.
    """
    key, given = "data-dir", data_dir
    if not given:
        key, given = DATA_ENV, os.environ.get(DATA_ENV, "")
    if not given:
        return None
    root = Path(given).expanduser().absolute()
    if not root.is_dir():
        raise DataError(f"{key} is {given!r}, which is not a folder; correct it")
    return DataFolder(root, f"{key} {given!r}")


def set_data_dir(below: str | Path) -> str:
    """Word the cure: name a folder that has ``below`` in it."""
    return (
        f"set data-dir (or the environment variable {DATA_ENV}) to a folder with"
        f" {below}; a SuperLink does not see a variable that was set after its start"
        " until `make stop`"
    )


def describe_source() -> str:
    """Say where this process takes data from if no data-dir is set."""
    if given := os.environ.get(DATA_ENV):
        return f"{DATA_ENV} was {given!r} when this SuperLink was started"
    return (
        f"{DATA_ENV} was not set when this SuperLink was started, so that data are"
        " downloaded; if you have set it since: `make stop`, then run again"
    )


def download(
    targets: Sequence[Path],
    fetch: Callable[[str, Path], Path],
    *,
    what: str,
    entry: Path,
    url: Callable[[Path], str],
    cure: str,
) -> None:
    """Download what is not there yet; each target appears whole, by one rename.

    Parameters
    ----------
    targets : sequence of Path
        Files or folders below the cache's ``downloads``.
    fetch : callable
        Given the address and an empty folder, downloads into it and returns the file
        or folder to keep.
    what : str
        Name of the data set in messages.
    entry : Path
        Path of the lock; the same for all processes that need these targets.
    url : callable
        Gives a target's address. PyTorch Geometric, which takes seconds to import,
        is imported only in here and in ``fetch``.
    cure : str
        What to do if it fails.

    Raises
    ------
    DataError
        Something cannot be downloaded, or the cache folder cannot be written.
    """
    if all(target.exists() for target in targets):
        return
    try:
        with locked(entry), scratch_folder(entry) as scratch:
            for number, target in enumerate(targets):
                if not target.exists():
                    work = scratch / str(number)
                    work.mkdir()
                    got = _fetch(target, fetch, url(target), work, what, cure)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    got.rename(target)
    except OSError as error:
        raise unusable(entry.parent, error) from error


def _fetch(
    target: Path,
    fetch: Callable[[str, Path], Path],
    address: str,
    work: Path,
    what: str,
    cure: str,
) -> Path:
    try:
        return fetch(address, work).resolve(strict=True)
    except Exception as error:  # many kinds: network, HTTP, zip
        raise DataError(
            f"no data-dir is set and {what} cannot be downloaded from {address}"
            f" ({error}); not in {target} either; {cure}"
        ) from error


def hint_of_near(path: Path) -> str:
    """Return ``"; did you mean PATH?"`` if the path's folder has a similar name."""
    near = nearest(path.name, (p.name for p in path.parent.glob("*")))
    return f"; did you mean {path.parent / near}?" if near else ""
