"""From what a run is resumed: its last checkpoint, and its roll call."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategies.directory import difference
from strategies.round_report import ClientInfo

from ..core.config import RESUME_MAY_CHANGE, RunSettings
from ..core.errors import ConfigError, DataError
from ..core.files import is_there, names_in, remove, unfinished
from ..core.tasks import EMBEDDINGS
from ..core.wire import Lives, NamedArrays
from ..resolve import Resolved
from .pooled import FOLDER as RELATIONS
from .provenance import hash_weights
from .reader import MATRICES, round_files
from .run_file import RunFile

# Folders with a file per round, and the first that the round after writes. The model of
# a round is embedded in the next one.
_OF_ROUNDS = {RELATIONS: 1, MATRICES: 1, EMBEDDINGS: 0}
_RESTORE = "restore it from a copy, or start a new run"


def drop_rounds(folder: Path, *, after: int) -> None:
    """Delete files of later rounds, and what a write that was killed has left."""
    for name, first in _OF_ROUNDS.items():
        place = folder / name
        later = [f for t, f in round_files(place).items() if t >= after + first]
        for outdated in (*later, *map(place.joinpath, unfinished(names_in(place)))):
            remove(outdated)


def lock_folder(folder: Path) -> int:
    """Keep other runs out of a results folder until this process closes or ends.

    Returns a descriptor to close.

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

    Returns the contents of ``roll-call.json``.

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


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """What a resumed run goes on from.

    Parameters
    ----------
    lives : Lives
        Whose states clients go on from.
    server_round : int
        Done before; 0 for none.
    oldest : int
        Round of the oldest checkpoint; 0 for none.
    found : (dict of str to array, dict), optional
        The checkpoint.
    """

    lives: Lives
    server_round: int = 0
    oldest: int = 0
    found: tuple[NamedArrays, dict[str, Any]] | None = None


def find_resume_point(
    folder: Path,
    before: Mapping[str, Any],
    settings: RunSettings,
    file: RunFile,
    run: int,
) -> ResumePoint:
    """Find the newest checkpoint of a run that it can go on from; nothing is changed.

    The model of the last round is always measured. So a round is repeated that was the
    last one planned ``before`` and no longer is, or is now and was not.

    Parameters
    ----------
    before : mapping
        The run config of the run so far.
    settings : RunSettings
        Those of the run that goes on.
    run : int
        Number of Flower's run that goes on.

    Raises
    ------
    ConfigError
        The run has done more rounds than it is to have, or the folder has another name
        than it had.
    DataError
        The run's file, or the checkpoint in it, is damaged.
    """
    there, done = file.checkpoints(), file.last_round()
    planned, now = int(before["num-server-rounds"]), settings.num_server_rounds
    must_repeat = planned != now and min(planned, now) in there[-1:]
    must_repeat = must_repeat and bool(there[-1] % settings.evaluate_every)
    found = there[:-1] if must_repeat else there
    left = [file.facts(number) for number in there[len(found) :]]
    spared = {r for f in left for r in (f["run"], *(e[0] for e in f["earlier-runs"]))}
    first_due = int(before["checkpoint-every"])
    if not found:
        if must_repeat and done > first_due:
            raise ConfigError(
                f"{folder} has rows of round {done}, but num-server-rounds = {now},"
                f" where it was {planned}, asks to repeat round {there[-1]}, whose"
                " model was measured as that of the last round, or now must be, and"
                f" there is no checkpoint from before it: set {planned} again, or start"
                " a new run"
            )
        if done > first_due:
            raise DataError(
                f"{file.path} has rows of round {done}, but its checkpoints are gone;"
                f" {_RESTORE}"
            )
        _check_place(folder, name_at_roll_call(folder))
        return ResumePoint(lives=Lives(run, spared=tuple(sorted(spared))))
    newest, cure = found[-1], _RESTORE
    if len(found) > 1 or (newest <= first_due and done <= first_due):
        to = "resume from the checkpoint before" if len(found) > 1 else "begin again"
        cure = f"to {to}, delete it: {file.command_to_drop(newest)}"
    arrays, facts = file.read(newest, cure)
    _check_place(folder, facts["experiment"])
    if newest > now:
        raise ConfigError(
            f"num-server-rounds is {now}, but the run to resume has done {newest}; set"
            " it higher"
        )
    earlier = [*facts["earlier-runs"], (facts["run"], newest)]
    lives = Lives(
        run, tuple((int(r), int(t)) for r, t in earlier), tuple(sorted(spared))
    )
    return ResumePoint(
        lives=lives, server_round=newest, oldest=found[0], found=(arrays, facts)
    )


def check_file(folder: Path, file: RunFile) -> None:
    """Refuse a folder without the run's file: nobody would know what clients have.

    Raises
    ------
    ConfigError
        An earlier version began the run.
    DataError
        The file is gone.
    """
    if is_there(file.path):
        return
    if is_there(folder / "checkpoint"):
        raise ConfigError(
            f"the run in {folder} was begun by an earlier version of fedgraph_flwr:"
            " resume it with that version, or start a new one"
        )
    raise DataError(f"there is no {file.path}, the record of the run; {_RESTORE}")


def _check_place(folder: Path, before: str) -> None:
    """Refuse a renamed folder, as clients keep their states under the old name."""
    if before != folder.name:
        raise ConfigError(
            f"{folder} was named {before!r} when the run wrote to it, and clients keep"
            " states and accounts under that name: give the folder that name again"
        )
