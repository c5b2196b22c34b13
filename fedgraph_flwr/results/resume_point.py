"""From where a run is resumed: its newest checkpoint, or the beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import RunSettings
from ..errors import ConfigError, DataError
from ..lives import Lives
from ..wire import NamedArrays
from .checkpoints import (
    GrowingFiles,
    Mark,
    checkpoint_path,
    checkpoint_rounds,
    last_round_of,
    read_checkpoint,
)
from .reader import ROUNDS
from .roll_call import name_at_roll_call

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
