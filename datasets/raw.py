"""Places of raw files: below the folder that a user names, or downloaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedgraph_flwr.errors import DataError, nearest
from fedgraph_flwr.files import sha256_of

from .cache import checksum, locked, scratch_folder, unusable
from .fetch import fetch
from .pinned import PINNED

DATA_ENV = "FEDGRAPH_DATA"
KNOWN = "downloads.sha256"  # in the cache: what first downloads brought
_TRUST = (
    ". If a proxy of your own signs for others, name the file with its authority in the"
    " environment variable SSL_CERT_FILE"
)


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
    targets: Mapping[Path, str],
    *,
    what: str,
    pin: str,
    cache: Path,
    entry: Path,
    cure: str,
    unpack: Callable[[Path, Path], object] = Path.rename,
) -> None:
    """Download what is not there yet; each target appears whole, by one rename.

    Parameters
    ----------
    targets : mapping of Path to str
        Addresses of files or folders below the cache's ``downloads``.
    what : str
        Name of the data set in messages.
    pin : str
        Its key in ``PINNED``. If it has none, what comes must be what came the first
        time, which the cache remembers.
    cache : Path
    entry : Path
        Path of the lock; the same for all processes that need these targets.
    cure : str
        What to do if it fails.
    unpack : callable
        Makes a target, at a path of its name, of the file that came.

    Raises
    ------
    DataError
        Something cannot be downloaded, or is not what it must be, or the cache folder
        cannot be written.
    """
    told = ""
    try:
        with locked(entry), scratch_folder(entry) as scratch:
            places = {t: t for t in targets if t.exists()}
            missing = [t for t in targets if t not in places]
            for number, target in enumerate(missing):
                address, work = targets[target], scratch / str(number)
                work.mkdir()
                places[target] = work / target.name
                try:
                    fetch(address, work / "came")
                    if pin not in PINNED:
                        told += _known(cache / KNOWN, address, work / "came", what)
                    unpack(work / "came", places[target])
                except DataError:
                    raise
                except Exception as error:  # many kinds: network, HTTP, zip
                    raise DataError(
                        f"no data-dir is set and {what} cannot be downloaded from"
                        f" {address} ({error}); not in {target} either; {cure}"
                        f"{_TRUST if 'CERTIFICATE' in str(error) else ''}"
                    ) from error
            if missing and pin in PINNED:
                _check_pin(pin, places.values(), what)
            for target in missing:
                target.parent.mkdir(parents=True, exist_ok=True)
                places[target].rename(target)
            if told:
                with (cache / KNOWN).open("a") as known:
                    known.write(told)
    except OSError as error:
        raise unusable(entry.parent, error) from error


def _known(known: Path, address: str, came: Path, what: str) -> str:
    """Compare a download with the first one; return the line to remember it by."""
    digest = sha256_of(came)
    for line in known.read_text().splitlines() if known.is_file() else []:
        first, _, of = line.partition("  ")
        if of == address and first != digest:
            raise DataError(
                f"{what} is not taken: {address} gave a file with SHA-256 {first} the"
                f" first time, and now one with {digest}; if its publisher has changed"
                f" it, delete that line of {known}, else try from another network"
            )
        if of == address:
            return ""
    return f"{digest}  {address}\n"


def _check_pin(pin: str, places: Iterable[Path], what: str) -> None:
    """Refuse files that are not the publisher's."""
    files = [f for p in places for f in (p.iterdir() if p.is_dir() else [p])]
    got = checksum(f for f in files if "readme" not in f.name.lower())
    if got != PINNED[pin]:
        raise DataError(
            f"{what} is not taken: its files have the checksum {got}, and those of its"
            f" publisher {PINNED[pin]} (datasets/pinned.py); nothing is kept. Try"
            f" from another network, or, if you trust other files, set data-dir (or"
            f" {DATA_ENV}) to a folder with them"
        )


def hint_of_near(path: Path) -> str:
    """Return ``"; did you mean PATH?"`` if the path's folder has a similar name."""
    near = nearest(path.name, (p.name for p in path.parent.glob("*")))
    return f"; did you mean {path.parent / near}?" if near else ""
