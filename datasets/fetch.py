"""Downloads over checked connections, and what is in the archives that come."""

from __future__ import annotations

import gzip
import ssl
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMEOUT_S = 60  # without a byte
_MOST_BYTES = 2**32  # of a download, and of what is unpacked
_FREE_BYTES = 2**26  # may be unpacked of any archive
_MOST_RATIO = 200  # of unpacked to packed bytes beyond that; COLLAB has 34


def fetch(address: str, path: Path) -> None:
    """Download ``address`` into the new file ``path``.

    Raises
    ------
    OSError
        No connection, a certificate that this machine does not trust, an address
        without encryption, an answer cut off or too long.
    """
    import certifi

    from fedgraph_flwr.terminal import announced  # it imports Flower

    found = ssl.get_default_verify_paths()
    has_store = found.cafile or found.capath  # not every Python finds the system's
    trusted = ssl.create_default_context(cafile=None if has_store else certifi.where())
    request = urllib.request.Request(address, headers={"User-Agent": "fedgraph-flwr"})
    with (
        announced(f"downloading {address}", lambda: f"{_size(path) / 1e6:.0f} MB"),
        urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted) as answer,
    ):
        if not answer.url.startswith("https://"):  # where redirects led to
            raise OSError(f"{answer.url} is not encrypted")
        _copy(answer, path, _MOST_BYTES)
    due = answer.headers.get("Content-Length")
    if due is not None and _size(path) != int(due):
        raise OSError(f"it was cut off: {_size(path)} of {due} bytes came")


def most_unpacked(archive: Path) -> int:
    """Return how many bytes an archive may hold."""
    return min(_MOST_BYTES, max(_FREE_BYTES, _MOST_RATIO * _size(archive)))


def unpack_gzip(path: Path, target: Path) -> None:
    """Unpack the one file of a .gz."""
    with gzip.open(path) as packed:
        _copy(packed, target, most_unpacked(path))


def unpack_texts(name: str) -> Callable[[Path, Path], None]:
    """Return a function that unpacks the texts in the folder ``name`` of a .zip."""

    def unpack(path: Path, folder: Path) -> None:
        folder.mkdir()
        left = most_unpacked(path)
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                place = Path(member.filename)
                if place.parts[:-1] == (name,) and place.suffix == ".txt":
                    with archive.open(member) as packed:
                        left -= _copy(packed, folder / place.name, left)
        if not any(folder.iterdir()):
            raise OSError(f"it has no texts in a folder {name}")

    return unpack


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _copy(source: Any, target: Path, most: int) -> int:
    """Copy into a new file; return the number of bytes."""
    done = 0
    with target.open("xb") as out:
        while block := source.read(1 << 20):
            done += len(block)
            if done > most:
                raise OSError(f"it holds more than the {most} bytes that are allowed")
            out.write(block)
    return done
