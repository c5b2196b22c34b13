"""Raw files, found or downloaded and checked, and the cache of what is made of them.

An entry is one folder: a ``.npy`` file per array and ``manifest.json``, which also has
the other fields. It is built in a scratch folder under a file lock and appears by one
rename, so that a half-built entry is never seen. Every opening checks the arrays
against the manifest; an entry that fails counts as damaged and is built again.

SHA-256 over the lines ``<sha256>  <file name>`` of a set's files, sorted by name,
READMEs left out, are pinned for most sets: a download must be the publisher's.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import logging
import os
import shutil
import ssl
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.data import GraphSet
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import from_home, make_private, sha256_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


Record = TypeVar("Record", bound="DataclassInstance")
log = logging.getLogger("flwr.fedgraph")

CACHE_FORMAT = 3  # part of every fingerprint: raise it when the conversion changes
CACHE_ENV = "FEDGRAPH_CACHE"


def cache_root(cache_dir: str = "") -> Path:
    """Return the cache folder: ``cache_dir``, else FEDGRAPH_CACHE, else XDG's."""
    chosen = cache_dir or os.environ.get(CACHE_ENV, "")
    xdg = os.environ.get("XDG_CACHE_HOME", "") or "~/.cache"
    return from_home(
        chosen or f"{xdg}/fedgraph-flwr",
        f"set cache-dir, or the environment variable {CACHE_ENV}, to another one",
    )


def open_or_build(
    entry: Path, kind: type[Record], build: Callable[[Path], Record]
) -> Record:
    """Open a cache entry, building it first if it is missing or damaged.

    Arrays are memory-mapped and read-only.

    Parameters
    ----------
    entry : Path
        Folder of the entry.
    kind : type
        Dataclass whose fields are arrays, or values that JSON can hold.
    build : callable
        Makes one; is given an empty scratch folder, removed afterwards.

    Raises
    ------
    DataError
        From ``build``, or if the cache folder cannot be written.
    """
    record = _open(entry, kind)
    if record is not None:
        return record
    try:
        with locked(entry):
            record = _open(entry, kind)  # another process may have built it meanwhile
            if record is None:
                with scratch_folder(entry) as scratch:
                    (scratch / "work").mkdir()
                    _write(scratch / "entry", build(scratch / "work"))
                    if entry.exists():  # damaged: out of the way, by rename
                        entry.rename(scratch / "damaged")
                    (scratch / "entry").rename(entry)
                record = _open(entry, kind)
    except OSError as error:
        raise unusable(entry.parent, error) from error
    if record is None:
        raise DataError(
            f"cache entry {entry} cannot be read back right after writing it; check"
            f" the disk, or set cache-dir (or {CACHE_ENV}) to another folder"
        )
    return record


def fingerprint_files(files: Iterable[Path]) -> str:
    """Hash of places, sizes and times of files; reading contents would take long.

    It is another once a file changes. Two files of one name, size and time may be
    different ones; tools that copy set the time back, not that of the last change.
    """
    digest = hashlib.sha256(f"format {CACHE_FORMAT}".encode())
    for path in files:
        at, stat = path.resolve(), path.stat()
        times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
        digest.update(f"/{at} {stat.st_size} {times}".encode(errors="surrogateescape"))
    return digest.hexdigest()[:12]


def checksum(paths: Iterable[Path]) -> str:
    """SHA-256 over the lines ``<sha256>  <file name>``, sorted by name."""
    digest = hashlib.sha256()
    for path in sorted(paths, key=lambda p: p.name):
        digest.update(f"{sha256_of(path)}  {path.name}\n".encode())
    return digest.hexdigest()


def label_checksum(y: NDArray[Any], node_ptr: NDArray[np.int64]) -> str:
    """SHA-256 over the labels and the numbers of nodes, without edges."""
    digest = hashlib.sha256(f"{y.dtype.str} {y.shape}".encode())
    for array in (y, node_ptr):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def unusable(folder: Path, error: OSError) -> DataError:
    """Word the error for a cache folder that cannot be read or written."""
    return DataError(
        f"the cache folder {folder} cannot be used: {error}; set cache-dir (or the"
        f" environment variable {CACHE_ENV}) to a writable folder with free space"
    )


@contextmanager
def locked(entry: Path) -> Iterator[None]:
    """Hold the lock of ``entry``; the system releases it if the process dies."""
    make_private(entry.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    handle = os.open(entry.parent / f"{entry.name}.lock", flags, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def scratch_folder(entry: Path) -> Iterator[Path]:
    """Make a folder beside ``entry`` to build in. Hold the lock of ``entry``."""
    prefix = f".{entry.name}.building-"
    for stale in entry.parent.glob(f"{prefix}*"):  # of a killed process
        shutil.rmtree(stale, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=entry.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(folder: Path, record: DataclassInstance) -> None:
    """Write arrays and manifest of one entry."""
    folder.mkdir()
    values: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name in (f.name for f in fields(record)):
        value = getattr(record, name)
        if isinstance(value, np.ndarray):
            array = np.ascontiguousarray(value)
            np.save(folder / f"{name}.npy", array)
            arrays[name] = _describe(array)
        else:
            values[name] = value
    manifest = {"format": CACHE_FORMAT, **values, "arrays": arrays}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def _describe(array: NDArray[Any]) -> dict[str, Any]:
    """Shape, type and checksum of an array, as they stand in the manifest."""
    return {
        "shape": list(array.shape),
        "dtype": array.dtype.str,
        "crc32": zlib.crc32(np.ascontiguousarray(array).data),
    }


def _open(entry: Path, kind: type[Record]) -> Record | None:
    """Open an entry, or return None if it is missing or damaged."""
    try:
        if not entry.is_dir():
            return None
        manifest = json.loads((entry / "manifest.json").read_text())
        values: dict[str, Any] = {}
        for name in (f.name for f in fields(kind)):
            if name not in manifest["arrays"]:
                values[name] = manifest[name]
                continue
            array = values[name] = np.load(entry / f"{name}.npy", mmap_mode="r")
            if _describe(array) != manifest["arrays"][name]:
                raise ValueError(f"{name}.npy is not as the manifest describes it")
        return kind(**values)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        log.warning("cache entry %s is damaged (%s); it is built again", entry, error)
        return None


_TABLE = """\
1e4d13567d2eb65861837b0f33010996f2f796d1f2b2c996de73f78287e603ea  AIDS
cd035f1fc8ab193f2b08424b5b92e07aa0cd2f847de2436bd38daa36779bc902  BZR
77ebd78368dcb12b7618112471aa822e9deffb53346785fa4116a05cc237afef  BZR_MD
826116ba56c8433f105136c431bc874ca91ff83b7c54b838701ed32de63be009  COX2
9ce8d433e53b7eb3c0350e0d8aae7fb0d10d191c85fb9445733bf6d976d78923  COX2_MD
0fe955dec06d6f60be96dcd605615dc372cc71f3af2ca643010c0a24efda1034  DHFR
3f70ac2f1661b18e6cd6ad0dc5d51496f6372720d55521650fde09acdaca7e2d  ENZYMES
42cae1ad2d5f0ea5083f12d0ea663addea47fc6b54b3f75092643885da9e014e  Fingerprint
acfa1abc55f0f03555a7b5b5e8dd519ead128261a72b759eb0c55b92909c12b1  IMDB-BINARY
a4b2ea999bda46b2536b487709277014b31e58de2c23a3f2815a1b7e4a7d2fbb  IMDB-MULTI
00e0b70dd33fbb08aa5e308311ee8818b85eb80407812ad9285623a85a607d1d  KKI
302b3d96f946bae15da69a8efa5e1191692b50573060392f0a844a363046c575  Letter-high
50c01a267a133593caf849a6b8135cb331a5774000f0a59a9255a78adff06669  Letter-low
e91f43acc18c871923d47dc30ef71e92f517bff66071d13e3186d796725f8cb9  Letter-med
69c7d8d0c1e030dd6c004e2ff4943bb966a1d531f45a862744534080878dc1c4  MUTAG
be21b0ed4a91e4d9b2630725137225dce1f334b3727dd424c57088845bd25365  Mutagenicity
c2478fd9695a5f34e5398c6a8fa642528ce25eb9a59f39869273fffb12a93ffc  NCI1
770865dba645ee1114a57bd8629aed954d28de1b69c76b001b792b870c86210c  OHSU
00785699a4c474b5d765dcb793e9b8771efac413aca32fd1329a36a5c7f7d921  PROTEINS
92ee661cf3e3144efacc82ec497ee5ec3afd9d3f08be6d21b2847e27a2f7bd64  PTC_FM
370b8317b13dc7697eaca93e8692eceb33b3048c4736e8043c2bb163b7176f0b  PTC_FR
355350678482947b13260fb4162d7fd42f40558ef4776703d239c4df85cc410a  PTC_MM
77b15f9a8eaca5bbf915c43c113a1f1356c5049e9596d2deb24268c8bc1a7886  PTC_MR
3b0ff8d43766e3d88885b3172ca3bdbd9ad64275a6cbdb2eb930a5c852cfb833  Peking_1
f60b9cb11b7f99aa213b99365acb5190724d3273537eec9a6b1780a2b09ca409  Cora
6e179cd0620be6a1904951fa8c916c8c345a8f08e331197c32aa2d720c1f4776  CiteSeer
0a5bb5208ad4b74fa1f7cb173838e0e321fb5afd3f26efd37eeff6c3c1582eb7  actor
0712a0989927235db0ded1572c25633d29eeb071d7823ef3b358b556c628d17f  chameleon_filtered
068d7d97bacd1c25503fa8986212fdb238a898de3aa3d69ab6f2faee52f3bc8b  cornell
3cf0ce0564f8655672a795dab2451803110cdb5b5e4c5626cff809c279fc00be  minesweeper
79ac5354c524205670afc2e8069b264c91a48484c73922b5e243ca8f2e461963  squirrel_filtered
e2fbdc01db9173efdd979ca096b6210617cc675372d2136384393cfd0b43c6ed  texas
0ef79d17742e676ba1d32716875c4c243870ba28c7b52817ee2d0e0c139fe9a0  tolokers
6501550bb1364e5c40c0ab7eaffc71b91447860b8b0929bbc0c61d587aee395d  wisconsin
49b363be68a0793c16a472e7e05475ba00f2fc3e5aec5b91fa2e906615ed3223  bace
56b13ed3c23988710ed21221610d3fe70e53fccdabc0dece7362e76983a68ace  esol
faa121fba269b1c3c478192226f20a61396186e96d90a51c806da0ab43224dd2  lipo
"""
PINNED: Mapping[str, str] = MappingProxyType(
    {name: digest for digest, name in map(str.split, _TABLE.splitlines())}
)


_TIMEOUT_S = 60  # without a byte
_MOST_BYTES = 2**32  # of a download, and of what is unpacked


def fetch(address: str, path: Path) -> None:
    """Download ``address`` into the new file ``path``.

    Raises
    ------
    OSError
        No connection, a certificate that this machine does not trust, an address
        without encryption, an answer cut off or too long.
    """
    import certifi

    from fedgraph_flwr.core.process import announced  # it imports Flower

    found = ssl.get_default_verify_paths()
    has_store = found.cafile or found.capath  # not every Python finds the system's
    trusted = ssl.create_default_context(cafile=None if has_store else certifi.where())
    request = urllib.request.Request(address, headers={"User-Agent": "fedgraph-flwr"})
    with (
        announced(f"downloading {address}"),
        urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusted) as answer,
    ):
        if not answer.url.startswith("https://"):  # where redirects led to
            raise OSError(f"{answer.url} is not encrypted")
        came = _copy(answer, path, _MOST_BYTES)
    due = answer.headers.get("Content-Length")
    if due is not None and came != int(due):
        raise OSError(f"it was cut off: {came} of {due} bytes came")


def unpack_gzip(path: Path, target: Path) -> None:
    """Unpack the one file of a .gz."""
    with gzip.open(path) as packed:
        _copy(packed, target, _MOST_BYTES)


def unpack_texts(name: str) -> Callable[[Path, Path], None]:
    """Return a function that unpacks the texts in the folder ``name`` of a .zip."""

    def unpack(path: Path, folder: Path) -> None:
        folder.mkdir()
        left = _MOST_BYTES
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                place = Path(member.filename)
                if place.parts[:-1] == (name,) and place.suffix == ".txt":
                    with archive.open(member) as packed:
                        left -= _copy(packed, folder / place.name, left)
        if not any(folder.iterdir()):
            raise OSError(f"it has no texts in a folder {name}")

    return unpack


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


DATA_ENV = "FEDGRAPH_DATA"
_TRUST = (
    ". If a proxy of your own signs for others, name the file with its authority in the"
    " environment variable SSL_CERT_FILE"
)


def describe_source() -> str:
    """Say where this process takes data from if no data-dir is set."""
    if given := os.environ.get(DATA_ENV):
        return f"{DATA_ENV} was {given!r} when this SuperLink was started"
    return (
        f"{DATA_ENV} was not set when this SuperLink was started, so that clients"
        " without data-path download data; if you have set it since: `make stop`, then"
        " run again"
    )


def raw_folder(
    what: str,
    collection: str,
    below: Sequence[str],
    files: Sequence[str],
    *,
    data_dir: str,
    cache: Path,
    kept: str,
    pin: str,
    addresses: Callable[[], Mapping[str, str]] | None,
    cure: str = "",
    unpack: Callable[[Path, Path], object] = Path.rename,
) -> Path:
    """Find the folder of a published set's raw files; download them as a last resort.

    Parameters
    ----------
    what : str
        Name of the data set in messages.
    collection : str
        Folder of its collection, in a user's data folder.
    below : sequence of str
        Folders below that, or below the data folder itself, that may hold the files.
    files : sequence of str
        Names of the files, all of which must be there.
    data_dir : str
        What the setting says; "" falls back to FEDGRAPH_DATA. If either is set,
        nothing is downloaded.
    kept : str
        Folder below the cache's ``downloads``.
    pin : str
        Key in ``PINNED``; a set without one is not compared.
    addresses : callable, optional
        Returns the address of each part, by its path below the folder; None if the
        set cannot be downloaded.
    cure : str
        How to come by the files if they cannot be downloaded.
    unpack : callable
        Makes a part, at a path of its name, of the file that came.

    Raises
    ------
    DataError
        The files are not where the user says, or cannot be downloaded.
    """
    place, more = f"{collection}/{below[0]}", f", and {cure}" if cure else ""
    cure = (
        f"set data-dir (or the environment variable {DATA_ENV}) to a folder with"
        f" {place}; a SuperLink does not see a variable that was set after its start"
        f" until `make stop`{more}"
    )
    key, given = "data-dir", data_dir
    if not given:
        key, given = DATA_ENV, os.environ.get(DATA_ENV, "")
    if given:
        root = Path(given).expanduser().absolute()
        if not root.is_dir():
            raise DataError(f"{key} is {given!r}, which is not a folder; correct it")
        places = [at / b for b in below for at in (root / collection, root)]
        here = next((place for place in places if place.is_dir()), None)
        missing = [f for f in files if here is None or not (here / f).is_file()]
        if here is not None and not missing:
            return here
        raise DataError(
            f"{what} is not in {key} {given!r}. Looked for"
            f" {', '.join(missing) or 'a folder'} in"
            f" {here or ', '.join(map(str, places))}; {cure}"
            + (", or leave both unset to download it" if addresses else "")
        )
    if addresses is None:
        raise DataError(
            f"{what} is not downloaded by itself: no data-dir is set; {cure}"
        )
    raw = cache / "downloads" / kept
    if not (raw.is_dir() and all((raw / f).exists() for f in files)):
        targets = {raw / part: address for part, address in addresses().items()}
        _download(targets, raw.parent, what, pin, cure, unpack)
    return raw


def graphs_of_files(
    name: str,
    files: Sequence[Path],
    make: Callable[[str], GraphSet],
    cache_dir: str,
    kind: str = "",
) -> GraphSet:
    """Graphs that ``make`` makes of files, given their checksum; through the cache.

    Raises
    ------
    DataError
        They cannot be read.
    """

    def build(_: Path) -> GraphSet:
        try:
            return make(checksum(files))
        except DataError:
            raise
        except Exception as error:  # whatever parsers raise
            raise DataError(
                f"cannot read {name} in {files[0].parent}: {error!r}; fetch the data"
                " set again"
            ) from error

    entry = cache_root(cache_dir) / f"{name}{kind}-{fingerprint_files(files)}"
    return open_or_build(entry, GraphSet, build)


def kept_files(
    what: str,
    collection: str,
    below: str,
    names: Sequence[str],
    data_dir: str,
    cache_dir: str,
) -> list[Path]:
    """Find the files of a set that is never downloaded; see :func:`raw_folder`."""
    folder = raw_folder(
        what,
        collection,
        [below],
        names,
        data_dir=data_dir,
        cache=cache_root(cache_dir),
        kept="",
        pin="",
        addresses=None,
        cure="put the files there (datasets/README.md says where they come from)",
    )
    return [folder / name for name in names]


def _download(
    targets: Mapping[Path, str],
    entry: Path,
    what: str,
    pin: str,
    cure: str,
    unpack: Callable[[Path, Path], object],
) -> None:
    """Download what is not there yet; each target appears whole, by one rename.

    ``entry`` is the path of the lock, the same for all who need these targets.
    """
    try:
        with locked(entry), scratch_folder(entry) as scratch:
            places = {t: t for t in targets if t.exists()}
            missing = [t for t in targets if t not in places]
            for number, target in enumerate(missing):
                work = scratch / str(number)
                work.mkdir()
                places[target] = work / target.name
                try:
                    fetch(targets[target], work / "came")
                    unpack(work / "came", places[target])
                except Exception as error:  # many kinds: network, HTTP, zip
                    raise DataError(
                        f"no data-dir is set and {what} cannot be downloaded from"
                        f" {targets[target]} ({error}); not in {target} either; {cure}"
                        f"{_TRUST if 'CERTIFICATE' in str(error) else ''}"
                    ) from error
            if missing and pin in PINNED:
                _check_pin(pin, places.values(), what)
            for target in missing:
                target.parent.mkdir(parents=True, exist_ok=True)
                places[target].rename(target)
    except OSError as error:
        raise unusable(entry.parent, error) from error


def _check_pin(pin: str, places: Iterable[Path], what: str) -> None:
    """Refuse files that are not the publisher's."""
    files = [f for p in places for f in (p.iterdir() if p.is_dir() else [p])]
    got = checksum(f for f in files if "readme" not in f.name.lower())
    if got != PINNED[pin]:
        raise DataError(
            f"{what} is not taken: its files have the checksum {got}, and those of its"
            f" publisher {PINNED[pin]} (datasets/cache.py); nothing is kept. Try"
            f" from another network, or, if you trust other files, set data-dir (or"
            f" {DATA_ENV}) to a folder with them"
        )


T = TypeVar("T")


@dataclass(frozen=True)
class Whole(Generic[T]):
    """A whole data set, or its labels, told from others by a hash alone."""

    sha256: str
    content: T = field(compare=False)
