"""From what a run is resumed: checkpoints, growing CSV files, its roll call."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategies.directory import difference
from strategies.round_report import ClientInfo

from ..core.config import RESUME_MAY_CHANGE, RunSettings
from ..core.errors import ConfigError, DataError
from ..core.files import (
    is_there,
    names_in,
    read_arrays,
    remove,
    sync,
    unfinished,
    unwritable,
    write_arrays,
)
from ..core.tasks import EMBEDDINGS
from ..core.wire import Lives, NamedArrays
from ..resolve import Resolved
from .pooled import FOLDER as RELATIONS
from .provenance import hash_weights
from .reader import MATRICES, ROUNDS, round_files

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


ROLL_CALL = "roll-call.json"


def name_at_roll_call(folder: Path) -> str:
    """Name that a results folder had then; its own if there is no telling."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        return str(json.loads((folder / ROLL_CALL).read_bytes())["experiment"])
    return folder.name  # whoever compares the clients finds out


def check_roll_call(
    folder: Path, clients: Mapping[int, ClientInfo], start: NamedArrays
) -> dict[str, Any]:
    """Compare who takes part, and the common start, with those of the first roll call.

    Returns
    -------
    dict
        Contents of ``roll-call.json``.

    Raises
    ------
    DataError
        A client has other data than at the first roll call, or the file is damaged.
    ConfigError
        The run would begin from another model.
    """
    path, sha = folder / ROLL_CALL, hash_weights({"start": start}, {})
    introduced = {str(c): i.to_json() for c, i in sorted(clients.items())}
    now = {"experiment": folder.name, "start_sha256": sha, "clients": introduced}
    if not is_there(path):
        return now
    try:
        before = json.loads(path.read_bytes())
        known = {int(c): ClientInfo.from_json(i) for c, i in before["clients"].items()}
        before_sha = before["start_sha256"]
        if known.keys() != clients.keys():
            raise ValueError(f"it has clients {sorted(known)}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: {error!r}; restore it, or start a new run"
        ) from error
    for client, info in known.items():
        if words := difference(info, clients[client]):
            raise DataError(words)
    if before_sha != sha:
        raise ConfigError(
            f"the run in {folder} began from another model than now: the one that"
            " init-from names has changed; restore that model, or start a new run"
        )
    return now


_RESTORE = "restore it from a copy, or start a new run"


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """What a resumed run goes on from.

    Parameters
    ----------
    marks : mapping of str to Mark
        How far the CSV files count.
    lives : Lives
        Whose states clients go on from.
    server_round : int
        Done before; 0 for none.
    oldest : int
        Round of the oldest checkpoint; 0 for none.
    found : (dict of str to array, dict), optional
        The checkpoint.
    """

    marks: Mapping[str, Mark]
    lives: Lives
    server_round: int = 0
    oldest: int = 0
    found: tuple[NamedArrays, dict[str, Any]] | None = None


def find_resume_point(
    folder: Path,
    before: Mapping[str, Any],
    settings: RunSettings,
    files: GrowingFiles,
    run: int,
) -> ResumePoint:
    """Find the newest checkpoint of a run that it can go on from; nothing is changed.

    The model of the last round is always measured. So a round is repeated that was the
    last one planned ``before`` and no longer is, or is now and was not.

    Parameters
    ----------
    folder : path
    before : mapping
        The run config of the run so far.
    settings : RunSettings
        Those of the run that goes on.
    files : GrowingFiles
    run : int
        Number of Flower's run that goes on.

    Raises
    ------
    ConfigError
        The run has done more rounds than it is to have, or checkpoints are of another
        version; or the folder has another name than it had.
    DataError
        The checkpoint, or a file that goes with it, is damaged or gone.
    """
    there = checkpoint_rounds(folder)
    planned, now = int(before["num-server-rounds"]), settings.num_server_rounds
    must_repeat = planned != now and min(planned, now) in there[-1:]
    must_repeat = must_repeat and bool(there[-1] % settings.evaluate_every)
    found = there[:-1] if must_repeat else there
    spared = _runs_of(folder, there[len(found) :])
    # 0 was "auto" once.
    first_due = int(before.get("checkpoint-every", 1)) or settings.checkpoint_every
    if not found:
        marks = files.at_headers()
        files.check(marks, _RESTORE)
        why = "its checkpoints are gone: restore them from a copy, or start a new run"
        if must_repeat:
            why = (
                f"num-server-rounds = {now}, where it was {planned}, asks to repeat"
                f" round {there[-1]}, whose model was measured as that of the last"
                " round, or now must be, and there is no checkpoint from before it: set"
                f" {planned} again, or start a new run"
            )
        if (done := last_round_of(folder / ROUNDS)) > first_due:
            refused = ConfigError if must_repeat else DataError
            raise refused(f"{folder} has rows of round {done}, but {why}")
        _check_place(folder, name_at_roll_call(folder))
        return ResumePoint(marks=marks, lives=Lives(run, spared=spared))
    newest = checkpoint_path(folder, found[-1])
    cure = _RESTORE
    if len(found) > 1:
        cure = f"delete {newest.name} there to resume from the checkpoint before"
    elif found[-1] <= first_due and _may_begin_again(folder, first_due):
        cure = f"delete {newest.name} there to begin again"
    arrays, meta = read_checkpoint(newest, found[-1], cure)
    _check_place(folder, meta["experiment"])
    if meta["round"] > now:
        raise ConfigError(
            f"num-server-rounds is {now}, but the run to resume has done"
            f" {meta['round']}; set it higher"
        )
    _check_version(folder, meta, files.names)
    files.check(meta["marks"], cure)
    earlier = [*meta["earlier-runs"], (meta["run"], meta["round"])]
    return ResumePoint(
        marks=meta["marks"],
        lives=Lives(run, tuple((int(r), int(last)) for r, last in earlier), spared),
        server_round=meta["round"],
        oldest=found[0],
        found=(arrays, meta),
    )


def _may_begin_again(folder: Path, first_due: int) -> bool:
    """Whether no round was done after the first checkpoint was due."""
    try:
        return last_round_of(folder / ROUNDS) <= first_due
    except OSError:  # whoever reads the rows finds out
        return False


def _runs_of(folder: Path, rounds: Iterable[int]) -> tuple[int, ...]:
    """Return runs whose states checkpoints need that are left out but still there."""
    runs: set[int] = set()
    for number in rounds:
        with suppress(DataError, KeyError):  # damaged: of no use to anybody
            _, meta = read_checkpoint(checkpoint_path(folder, number), number, _RESTORE)
            runs |= {meta["run"], *(run for run, _ in meta["earlier-runs"])}
    return tuple(sorted(runs))


def _check_place(folder: Path, before: str) -> None:
    """Refuse a renamed folder, as clients keep their states under the old name."""
    if before != folder.name:
        raise ConfigError(
            f"{folder} was named {before!r} when the run wrote to it, and clients keep"
            " states and accounts under that name: give the folder that name again"
        )


def _check_version(folder: Path, meta: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a checkpoint without what this version needs, or with more files."""
    strange = meta["marks"].keys() ^ set(names) | {"earlier-runs"} - meta.keys()
    if strange:
        raise ConfigError(
            f"the checkpoints in {folder} are of another version of fedgraph_flwr, for"
            f" which {', '.join(sorted(strange))} is unknown or missing: resume with"
            " the version that began the run, or start a new one"
        )
