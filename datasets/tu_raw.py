"""Raw files of a TU data set: where they are, and unpacking them."""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from typing_extensions import override

from fedgraph_flwr.errors import DataError, nearest

from .fetch import most_unpacked, unpack_texts
from .raw import data_folder, download, set_data_dir

REQUIRED = ("A", "graph_indicator", "graph_labels")
LABELS, ATTRIBUTES = "node_labels", "node_attributes"
_UNUSED = (LABELS, ATTRIBUTES, "edge_labels", "edge_attributes", "graph_attributes")
_MOST_MEMBERS = 1000  # of an archive
_BLOCK = 1 << 22


@dataclass(frozen=True)
class RawSource:
    """A raw folder with the files of one data set, or an archive of it.

    Parameters
    ----------
    name : str
    origin : Path
        The folder or the archive.
    optional : tuple of str
        Kinds of files that are used if they are there, beside those of ``REQUIRED``.
    files : tuple of Path
        What the fingerprint is taken from: the used text files, or the archive.
    """

    name: str
    origin: Path
    optional: tuple[str, ...]
    files: tuple[Path, ...]

    def place(self, work: Path) -> tuple[dict[str, Path], str]:
        """Return the files by kind, and say what is there but not used.

        Those of an archive are unpacked into the folder ``work``.

        Raises
        ------
        DataError
            If the archive is corrupt or lacks a file.
        """
        raw = self.origin if self.origin.is_dir() else work
        if raw is work:
            there = self._unpack(work)
        else:
            there = {path.name for path in raw.iterdir()}
        files = _files_by_kind(self.name, raw, self.optional, shown=self.origin)
        unused = [
            kind.replace("_", " ")
            for kind in _UNUSED
            if kind not in files and f"{self.name}_{kind}.txt" in there
        ]
        return files, ", ".join(unused)

    def _unpack(self, raw: Path) -> set[str]:
        """Unpack the used files; return the names of all."""
        wanted = {f"{self.name}_{kind}.txt" for kind in (*REQUIRED, *self.optional)}
        there = set()
        left = most = most_unpacked(self.origin)
        try:
            with (
                lzma.open(self.origin) as packed,
                tarfile.open(fileobj=_Bounded(packed), mode="r:") as archive,
            ):
                for number, member in enumerate(archive, 1):
                    left -= self._check_member(member, number)
                    if left < 0:
                        raise self._refusal(
                            f"{member.name!r} in it has {member.size} bytes, with which"
                            f" it unpacks to more than the {most} bytes that are"
                            " allowed for its size"
                        )
                    filename = PurePosixPath(member.name).name
                    there.add(filename)
                    if filename not in wanted or not member.isfile():
                        continue
                    stream = archive.extractfile(member)
                    assert stream is not None  # as it is a file
                    with stream, (raw / filename).open("xb") as out:
                        shutil.copyfileobj(stream, out, _BLOCK)
        except FileExistsError as error:
            raise self._refusal(f"it has two files {filename}") from error
        except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
            raise DataError(
                f"the archive {self.origin} is corrupt or cut off ({error});"
                " fetch it again"
            ) from error
        return there

    def _check_member(self, member: tarfile.TarInfo, number: int) -> int:
        """Return a member's bytes; one that is no plain file or folder is refused."""
        parts = PurePosixPath(member.name).parts
        if number > _MOST_MEMBERS:
            raise self._refusal(f"it has more than {_MOST_MEMBERS} members")
        if not (member.isfile() or member.isdir()):
            raise self._refusal(f"{member.name!r} in it is a link or a device")
        if member.name.startswith("/") or ".." in parts:
            raise self._refusal(f"{member.name!r} in it leads out of its folder")
        if member.size < 0:
            raise self._refusal(f"{member.name!r} in it has {member.size} bytes")
        return member.size

    def _refusal(self, problem: str) -> DataError:
        return DataError(
            f"the archive {self.origin} is not taken: {problem}; an archive of a TU"
            f" data set holds up to {_MOST_MEMBERS} plain files and folders: fetch it"
            " again, from where you trust"
        )


class _Bounded(io.RawIOBase):
    """A stream that refuses to read much at once, as tarfile does for long headers."""

    def __init__(self, stream: lzma.LZMAFile) -> None:
        super().__init__()
        self._stream = stream

    @override
    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._stream.seek(offset, whence)

    @override
    def tell(self) -> int:
        """Say the place."""
        return self._stream.tell()

    @override
    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes."""
        if not 0 <= size <= _BLOCK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._stream.read(size)


def find_raw(
    name: str, data_dir: str, cache: Path, optional: tuple[str, ...] = (LABELS,)
) -> RawSource:
    """Find the raw files of a TU data set, downloading them as the last resort.

    Parameters
    ----------
    name : str
    data_dir : str
        As in :func:`~datasets.raw.data_folder`.
    cache : Path
        Cache folder, which also keeps downloads.
    optional : tuple of str
        Kinds of files that are to be used if they are there.

    Raises
    ------
    DataError
        If the data set is not where the user says, or cannot be downloaded.
    """
    folder = data_folder(data_dir)
    if folder is None:
        return _folder_source(name, download_raw(name, cache), optional)
    places = folder.places("tudataset", f"{name}/raw")
    archive = folder.root / "tudataset_packed" / f"{name}.tar.xz"
    for place in places:
        if place.is_dir():
            return _folder_source(name, place, optional)
    if archive.is_file():
        return RawSource(name, archive, optional, (archive,))
    looked = ", ".join(map(str, [*places, archive]))
    near = _nearest(name, folder.root)
    hint = f" Did you mean tu:{near}?" if near else ""
    raise DataError(
        f"TU data set {name!r} is not in {folder.says}.{hint} Looked for {looked};"
        f" {_cure(name)}, or leave both unset to download it"
    )


def _nearest(name: str, root: Path) -> str:
    """Nearest name of a data set that is there; "" if none is near."""
    there = [
        p.parent.name for p in [*root.glob("tudataset/*/raw"), *root.glob("*/raw")]
    ]
    packed = root.glob("tudataset_packed/*.tar.xz")
    there += [p.name.removesuffix(".tar.xz") for p in packed]
    return nearest(name, there)


def _cure(name: str) -> str:
    return set_data_dir(f"tudataset/{name}/raw or {name}/raw")


def _folder_source(name: str, raw: Path, optional: tuple[str, ...]) -> RawSource:
    files = _files_by_kind(name, raw, optional, shown=raw)
    used = tuple(path.resolve() for path in files.values())
    return RawSource(name, raw, optional, used)


def _files_by_kind(
    name: str, raw: Path, optional: tuple[str, ...], *, shown: Path
) -> dict[str, Path]:
    """Return the files of a raw folder by kind; all required ones must be there."""
    paths = {k: raw / f"{name}_{k}.txt" for k in (*REQUIRED, *optional)}
    found = {kind: path for kind, path in paths.items() if path.is_file()}
    missing = [paths[kind].name for kind in REQUIRED if kind not in found]
    if not found:
        raise DataError(
            f"{shown} has none of the files {name}_*.txt of TU data set {name!r};"
            " fetch the data set again"
        )
    if missing:
        extra = (
            " (sets with graph_attributes only are regression sets, which this"
            " application does not cover)"
            if missing == [f"{name}_graph_labels.txt"]
            else ""
        )
        raise DataError(
            f"{shown} lacks {', '.join(missing)}{extra}; fetch the data set again"
        )
    return found


def download_raw(name: str, cache: Path) -> Path:
    """Download the archive into the cache and unpack it; return the raw folder."""
    target = cache / "downloads" / name / "raw"
    if target.exists():
        return target
    from torch_geometric.datasets import TUDataset

    download(
        {target: f"{TUDataset.url}/{name}.zip"},
        what=f"TU data set {name!r}",
        pin=name,
        cache=cache,
        entry=target.parent,
        cure=_cure(name),
        unpack=unpack_texts(name),
    )
    return target
