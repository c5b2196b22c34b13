"""Files to resume a run from: checkpoints, and CSV files that only ever grow."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import RESUME_MAY_CHANGE
from ..errors import ConfigError, DataError
from ..files import (
    names_in,
    read_arrays,
    remove,
    sync,
    unfinished,
    unwritable,
    write_arrays,
)
from ..resolve import Resolved
from ..tasks import EMBEDDINGS
from ..wire import NamedArrays
from .reader import MATRICES, round_files
from .task_relations import FOLDER as RELATIONS

# Folders with a file per round, and the first that the round after writes. The model of
# a round is embedded in the next one.
_OF_ROUNDS = {"checkpoint": 1, RELATIONS: 1, MATRICES: 1, EMBEDDINGS: 0}
_KEPT = 2
_PART = 2**20  # bytes that are read at once
Mark = Sequence[Any]  # size in bytes, SHA-256 of so many


class GrowingFiles:
    """CSV files of one folder; a checkpoint remembers how far each of them was."""

    def __init__(self, folder: Path, columns: Mapping[str, Sequence[str]]) -> None:
        self._folder, self._columns = folder, dict(columns)
        self._digests = {name: hashlib.sha256() for name in columns}

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return list(self._columns)

    def at_headers(self) -> dict[str, Mark]:
        """Say how far files with nothing but their columns' names are."""
        marks: dict[str, Mark] = {}
        for name, columns in self._columns.items():
            line = (",".join(columns) + "\r\n").encode()
            marks[name] = (len(line), hashlib.sha256(line).hexdigest())
        return marks

    def append(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows at the end of a file.

        Raises
        ------
        StorageError
            The disk is full, or the folder read-only.
        """
        text = io.StringIO(newline="")
        csv.writer(text).writerows(rows)
        encoded, path = text.getvalue().encode(), self._folder / name
        try:
            with path.open("ab") as file:
                file.write(encoded)
        except OSError as error:
            raise unwritable(path, error) from error
        self._digests[name].update(encoded)

    def marks(self) -> dict[str, Mark]:
        """Flush all files to the disk and say how far they are.

        Raises
        ------
        StorageError
            One cannot be flushed.
        """
        found: dict[str, Mark] = {}
        for name, digest in self._digests.items():
            path = self._folder / name
            try:
                sync(path)
                found[name] = (path.stat().st_size, digest.hexdigest())
            except OSError as error:
                raise unwritable(path, error) from error
        return found

    def check(self, marks: Mapping[str, Mark], cure: str) -> None:
        """Go back to the marks, beyond which files may go on; none is changed.

        Raises
        ------
        DataError
            A file is shorter than its mark says, or has other contents.
        """
        for name, (size, expected) in marks.items():
            path, digest, left = self._folder / name, hashlib.sha256(), size
            try:
                with path.open("rb") as file:
                    while part := file.read(min(left, _PART)):
                        digest.update(part)
                        left -= len(part)
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error}; {cure}") from error
            if left or digest.hexdigest() != expected:
                raise DataError(
                    f"{path} does not begin with the {size} bytes that the checkpoint"
                    f" was made with; {cure}"
                )
            self._digests[name] = digest

    def rows(self, name: str, mark: Mark) -> Iterator[list[str]]:
        """Rows of a file up to a mark, as lists of cells, without its header."""
        left, _ = mark
        with (self._folder / name).open("rb") as file:
            left -= len(next(file, b""))
            yield from csv.reader(
                line.decode() for line in file if (left := left - len(line)) >= 0
            )

    def cut(self, marks: Mapping[str, Mark]) -> None:
        """Drop what follows the marks: rows of rounds that will be repeated.

        Raises
        ------
        StorageError
            A file cannot be written.
        """
        for name, (size, _) in marks.items():
            path = self._folder / name
            try:
                os.truncate(path, size)
            except OSError as error:
                raise unwritable(path, error) from error


def checkpoint_rounds(folder: Path) -> list[int]:
    """List the rounds whose checkpoints are in a run's folder, ascending."""
    return [*round_files(folder / "checkpoint")]


def write_checkpoint(
    folder: Path, server_round: int, arrays: NamedArrays, facts: Mapping[str, Any]
) -> int:
    """Write a checkpoint, keep the last two, and return the round of the older one."""
    write_arrays(checkpoint_path(folder, server_round), arrays, json.dumps(facts))
    rounds = checkpoint_rounds(folder)
    for old in rounds[:-_KEPT]:
        remove(checkpoint_path(folder, old))
    return rounds[-_KEPT:][0]


def drop_rounds(folder: Path, *, after: int) -> None:
    """Delete files of later rounds, and what a write that was killed has left."""
    for name, first in _OF_ROUNDS.items():
        place = folder / name
        later = [f for t, f in round_files(place).items() if t >= after + first]
        for outdated in (*later, *map(place.joinpath, unfinished(names_in(place)))):
            remove(outdated)


def read_checkpoint(
    path: Path, server_round: int, cure: str
) -> tuple[NamedArrays, dict[str, Any]]:
    """Read arrays and facts; ``cure`` says what to do about a damaged file.

    Raises
    ------
    DataError
        The file is damaged, or is that of another round.
    """
    arrays, text = read_arrays(path, "checkpoint", cure)
    facts: dict[str, Any] = json.loads(text)
    if facts["round"] != server_round:
        raise DataError(
            f"checkpoint {path} is that of round {facts['round']}: give every file the"
            f" name that it had, or {cure}"
        )
    return arrays, facts


def checkpoint_path(folder: Path, server_round: int) -> Path:
    """Place of the checkpoint after a round."""
    return folder / "checkpoint" / f"round-{server_round:06d}.safetensors"


def lock_folder(folder: Path) -> int:
    """Keep other runs out of a results folder until this process closes or ends.

    Returns
    -------
    int
        Descriptor to close.

    Raises
    ------
    ConfigError
        Another run writes there.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ConfigError(
            f"another run is writing to {folder}: wait until it ends, or stop it"
            " (`flwr ls`, `flwr stop RUN_ID`; `make stop` if its SuperLink was killed)"
        ) from error
    return descriptor


def last_round_of(path: Path) -> int:
    """Last round in a CSV file, whose last row may be torn."""
    first = [
        line.partition(",")[0] for line in path.read_text(errors="replace").splitlines()
    ]
    return max((int(word) for word in first if word.isdigit()), default=0)


def check_same_config(
    path: Path, before: Mapping[str, Any], resolved: Resolved
) -> None:
    """Refuse to resume a run with another configuration than it had.

    Raises
    ------
    ConfigError
        A key differs that may not change.
    """
    now = resolved.to_config()
    may_change = RESUME_MAY_CHANGE - (
        {"state-dir"} if resolved.privacy.is_on else set()
    )
    for key in sorted(set(before) | set(now)):
        if key not in may_change and before.get(key) != now.get(key):
            raise ConfigError(
                f"cannot resume {path}: {key} was {before.get(key)!r} and is now"
                f" {now.get(key)!r}; only {', '.join(sorted(may_change))} may change"
            )
