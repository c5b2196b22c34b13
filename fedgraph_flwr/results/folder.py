"""The results folder of a run: written as the run goes, usable whenever it stops."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from logging import WARNING
from pathlib import Path
from traceback import format_exception
from typing import Any

from strategies.base import AbstractGraphStrategy
from strategies.replies import is_model
from strategies.round_report import Evaluation, LedgerEntry, RoundReport

from ..core.errors import ConfigError, DataError, RunFailedError, StorageError
from ..core.files import (
    from_home,
    is_there,
    make_folder,
    remove,
    write_arrays,
    write_json,
    write_npz,
    write_text,
)
from ..core.logs import log
from ..core.wire import Lives, NamedArrays
from ..resolve import Resolved
from .checkpoints import (
    ResumePoint,
    check_file,
    check_same_config,
    drop_rounds,
    find_resume_point,
    lock_folder,
)
from .model_files import keep_models
from .provenance import Origins
from .reader import (
    CONFIG,
    LEDGER,
    REPORT,
    ROUNDS,
    SUMMARY,
    TIMES,
    blaming,
    load_summary,
    read_config,
    round_file,
)
from .record import RunRecord
from .run_file import FAILURES, Rows, RunFile
from .summary import COMPLETED, FAILED, METRICS, RUNNING, metrics_text, summarise

_MODE = 0o750  # of a run's folder: monitoring reads it by its group
_EXPORT_S = 1.0  # CSV files are at most so old while rounds are done
TRACEBACK = "traceback.txt"


def results_root(configured: str) -> tuple[Path, str]:
    """Folder for results, and why that one.

    ``results-dir`` if set; else ``results/`` of the project that env.sh was sourced in
    (FEDGRAPH_HOME); else of the working folder if it is this project; else of the
    user's home folder.
    """
    if configured:
        return Path(configured), "results-dir"
    if home := os.environ.get("FEDGRAPH_HOME"):
        return Path(home) / "results", "FEDGRAPH_HOME, set by env.sh"
    here = Path.cwd()
    if (here / "fedgraph_flwr" / "server_app.py").is_file():
        return here / "results", "the working folder is the project"
    why = "neither results-dir nor FEDGRAPH_HOME is set"
    return from_home("~/fedgraph-results", f"set results-dir, as {why}"), why


def short_id(run_id: int) -> str:
    """Last part of the name of a run's folder."""
    return f"{run_id:x}"[:8]


class RunFolder:
    """Writes the record, models and the summary of a run.

    One process writes to a folder at a time; it is free again after :meth:`close`.

    Parameters
    ----------
    path : path
        The run's folder; created here unless the run is resumed.
    run_id : int
        Flower's.
    """

    def __init__(self, path: Path, resolved: Resolved, *, run_id: int) -> None:
        self.path = path
        self.resolved = resolved
        self.run_id = str(run_id)
        self.resumed_from: int | None = None
        self.so_far = RunRecord(resolved.method.task)
        self._found: tuple[NamedArrays, dict[str, Any]] | None = None
        self._oldest_checkpoint = 0
        self.file = RunFile(path)
        self._exported_at = 0.0
        self._is_waiting = False  # a resumed run, until it has done a round,
        self._held: list[RoundReport] = []  # and what came before that
        self._last: RoundReport | None = None
        self._lock = lock_folder(path)
        self._lives = Lives(run_id)
        self._to_add: list[tuple[str, Callable[[], None]]] = []
        self.lineage: list[Mapping[str, Any]] = []
        self.origins = Origins()

    @classmethod
    def open(cls, resolved: Resolved, *, run_id: int) -> RunFolder:
        """Make a folder for a new run, or reopen that of the run to resume.

        Raises
        ------
        ConfigError
            The folder to resume is no results folder, another run writes to it, or the
            run's configuration differs.
        DataError
            The last checkpoint, or a file that goes with it, is damaged.
        StorageError
            The folder cannot be made.
        """
        if resolved.settings.resume:
            # Not a link to it: clients keep their states under the folder's own name.
            path = Path(os.path.realpath(resolved.settings.resume))
            return cls._reopen(path, resolved, run_id=run_id)
        return cls._create(resolved, run_id=run_id)

    @classmethod
    def _reopen(cls, path: Path, resolved: Resolved, *, run_id: int) -> RunFolder:
        """Go back to the last checkpoint of a run; nothing in its folder changes yet.

        A run that stopped before its first checkpoint begins again.
        """
        try:
            before = read_config(path)
        except DataError as error:
            raise ConfigError(f"resume: {error}") from error
        folder = cls(path, resolved, run_id=run_id)
        try:
            check_file(path, folder.file)
            check_same_config(path, before, resolved)
            with blaming(path):
                folder._go_back_to(
                    find_resume_point(
                        path, before, resolved.settings, folder.file, run_id
                    )
                )
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def _create(cls, resolved: Resolved, *, run_id: int) -> RunFolder:
        """Make the folder ``<UTC>-<method>-<dataset>-<seed>-<short run id>``."""
        s = resolved.settings
        root, _ = results_root(s.results_dir)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        short = short_id(run_id)
        what = f"{s.method}-{s.dataset}".replace(":", "-")
        name = f"{stamp}-{what}-{s.seed}-{short}"
        path = root / (f"{name}-dry-run" if s.dry_run else name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(_MODE)
        except OSError as error:
            raise StorageError(
                f"cannot make the results folder {path}: {error}; set results-dir to a"
                " folder that can be written"
            ) from error
        folder = cls(path, resolved, run_id=run_id)
        try:
            folder.file.begin()
            write_json(path / CONFIG, resolved.to_config())
        except BaseException:
            folder.withdraw()
            folder.close()
            raise
        return folder

    @property
    def experiment(self) -> str:
        """Name under which clients keep their state; the same after a resume."""
        return self.path.name

    def withdraw(self) -> None:
        """Remove the folder of a new run that was refused; keep that of a resume."""
        if self.resumed_from is None:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            log(WARNING, "%s is as it was before this resume", self.path)

    def close(self) -> None:
        """Let others write to the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def restore(self, strategy: AbstractGraphStrategy) -> bool:
        """Let a strategy go on from the checkpoint, and say whether there was one.

        Raises
        ------
        DataError
            It, or the summary, is not as a run writes it.
        """
        found, self._found = self._found, None
        with blaming(self.path):
            if found is not None:
                strategy.restore_frame(found[1]["frame"])
            strategy.spent |= self._spent_at_the_end()
            strategy.lives = self.lives
            if found is None:
                return False
            arrays, meta = found
            strategy.restore(arrays, meta["facts"])
        strategy.keep_from = self._oldest_checkpoint
        strategy.first_round = self.so_far.last_round + 1
        self.lineage = meta.get("lineage", [])  # the former run may be gone by now
        return True

    @property
    def lives(self) -> Lives:
        """Runs of Flower whose rounds count; others are spared until one is done."""
        if self._is_waiting:
            return self._lives
        return replace(self._lives, spared=())

    def add(self, name: str, write: Callable[[], None]) -> None:
        """Write a file unless it is there: now, or when a resume has done a round."""
        if self._is_waiting:
            self._to_add.append((name, write))
        elif not is_there(self.path / name):
            write()

    def _spent_at_the_end(self) -> dict[int, dict[str, float]]:
        """Privacy that clients had spent when the run ended, if it wrote a summary.

        They may have spent it after the checkpoint, and not reply any more.
        """
        path = self.path / SUMMARY
        if not self.resolved.privacy.is_on:
            return {}
        try:
            before = load_summary(self.path) if is_there(path) else {}
            per_client = (before.get("privacy") or {}).get("per_client", {})
            return {
                int(client): {name: float(value) for name, value in spent.items()}
                for client, spent in per_client.items()
            }
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise DataError(
                f"{path}, which says what clients have spent of their privacy, cannot"
                f" be read: {error!r}; restore it, or delete it to go on without"
            ) from error

    # While the run goes on -------------------------------------------------------

    def record(
        self, report: RoundReport, strategy: AbstractGraphStrategy | None = None
    ) -> None:
        """Write one round, and with ``strategy`` a checkpoint, as one transaction.

        The first round that a resumed run completes drops the rounds that it repeats.
        Until then the folder stays as it was. The strategy learns which checkpoint is
        the oldest: clients keep what it needs.

        Raises
        ------
        StorageError
            A file cannot be written, or the folder was moved or deleted.
        """
        self._check_there()
        self._held.append(report)
        if self._is_waiting and not (report.is_complete or report.is_closing):
            return
        after = (self.resumed_from or 0) if self._is_waiting else None
        if after is not None:
            drop_rounds(self.path, after=after)
        self._last = report
        with self.file.writing(after=after) as writing:
            for held in self._held:
                self._write_files(held)
                writing.add(held.server_round, self._rows(held))
            if strategy is not None:
                arrays, facts = self._checkpoint(strategy)
                oldest = writing.checkpoint(self.so_far.last_round, arrays, facts)
        self._held.clear()
        if after is not None:
            self._is_waiting = False
            self._go_on()
        if strategy is not None:
            strategy.keep_from = oldest
            remove(self.path / SUMMARY)
        if report.is_closing or time.monotonic() > self._exported_at + _EXPORT_S:
            self._export()

    def _go_on(self) -> None:
        """Drop what told of the run as it ended before; others are written at the end.

        A summary that tells what was spent stays until a checkpoint does.
        """
        outdated = [TRACEBACK, REPORT]
        if not self.resolved.privacy.is_on:
            outdated.append(SUMMARY)
        for name in outdated:
            remove(self.path / name)
        write_json(self.path / CONFIG, self.resolved.to_config())
        for name, write in self._to_add:
            self.add(name, write)

    def _rows(self, report: RoundReport) -> Rows:
        """Rows of a round by table; it counts from now on."""
        seconds = (report.wall_s, report.busy_s, report.client_compute_s)
        return {
            ROUNDS: map(_evaluation_row, report.evaluations),
            LEDGER: map(_ledger_row, report.ledger),
            TIMES: [(report.server_round, *seconds)],
            FAILURES: map(_failure_row, self.so_far.add(report)),
        }

    def _write_files(self, report: RoundReport) -> None:
        for name, arrays in report.files.items():
            write_npz(self.path / name, arrays)
        if report.is_complete and report.arrays:
            # A round that is repeated writes them again.
            write_arrays(round_file(self.path, report.server_round), report.arrays)

    def _export(self) -> None:
        self.file.export()
        self._exported_at = time.monotonic()

    def meter(self, strategy: AbstractGraphStrategy, status: int = RUNNING) -> None:
        """Write the numbers for monitoring anew."""
        if not self._is_waiting:
            text = metrics_text(self, strategy, self._last, status=status)
            write_text(self.path / METRICS, text)

    def _checkpoint(
        self, strategy: AbstractGraphStrategy
    ) -> tuple[NamedArrays, dict[str, Any]]:
        """Return the server's state after a round."""
        arrays, facts = _state_of(strategy)
        return arrays, {
            **self.so_far.to_json(),
            "lineage": self.lineage,
            "origins": self.origins.parts,
            "run": self._lives.run,
            "earlier-runs": self._lives.earlier,
            "experiment": self.experiment,
            "facts": facts,
            "frame": strategy.frame_facts(),
        }

    def _check_there(self) -> None:
        """Refuse to begin a second folder where the run's own was."""
        with suppress(OSError):
            if os.path.samestat(self.path.stat(), os.fstat(self._lock)):
                return
        raise StorageError(
            f"the results folder {self.path} was moved or deleted while the run wrote"
            " to it: put it back there, under that name, and resume; or start a new run"
        )

    def _go_back_to(self, point: ResumePoint) -> None:
        """Set everything to what it was at a checkpoint, or before round 1."""
        self._is_waiting, self._lives = True, point.lives
        self.resumed_from, self._found = point.server_round, point.found
        self._oldest_checkpoint = point.oldest
        if point.found is None:
            return
        self.origins = Origins(point.found[1].get("origins", ()))
        if changed := self.origins.describe_changes():
            log(
                WARNING,
                "%s has changed since earlier rounds were computed: results may be"
                " those of no undisturbed run, and the summary marks the commit"
                ' "+dirty"; for the bytes of one, restore what has changed, or start a'
                " new run",
                changed,
            )
        self.so_far.restore(point.found[1])
        self.so_far.reread(self.file.rows(ROUNDS, until=point.server_round))
        failed = self.file.rows(FAILURES, until=point.server_round)
        self.so_far.failures = [_failure(*row) for row in failed]

    # At the end ------------------------------------------------------------------

    def finish(
        self,
        strategy: AbstractGraphStrategy,
        *,
        error: BaseException | None = None,
    ) -> dict[str, Any]:
        """Write models and ``summary.json``; also for a failed run.

        A resumed run that failed before it completed a round has nothing to add: the
        folder stays as it was, and the error is all there is to tell.
        """
        if error is not None and self._is_waiting:
            return {}
        self._check_there()
        self._export()
        if error is not None:
            write_text(self.path / TRACEBACK, "".join(format_exception(error)))
        models = strategy.models() if self.so_far.last_round else {}
        make_folder(self.path / "models")  # also where there is no model
        write_json(self.path / "clusters.json", {"rounds": self.so_far.clusters})
        summary = summarise(self, strategy, models, error)
        keep_models(self.path / "models", self.resolved, strategy, models, summary)
        write_json(self.path / SUMMARY, summary)
        self.meter(strategy, COMPLETED if error is None else FAILED)
        return summary


def _state_of(strategy: AbstractGraphStrategy) -> tuple[NamedArrays, dict[str, Any]]:
    """Return what a strategy goes on from; blame it for what no checkpoint can hold."""
    state = strategy.state()
    is_pair = isinstance(state, tuple) and len(state) == 2
    if is_pair and is_model(state[0]) and isinstance(state[1], dict):
        with suppress(TypeError, ValueError):
            json.dumps(state[1])
            return state
    raise RunFailedError(
        f"state() of {type(strategy).__name__} must return two things, NumPy arrays by"
        f" name and a dict that JSON can hold, got a {type(state).__name__}; mend it"
    )


def _evaluation_row(e: Evaluation) -> tuple[Any, ...]:
    return (
        e.server_round,
        e.client,
        e.split,
        e.point,
        e.metric,
        repr(e.value),
        e.num_examples,
    )


def _failure_row(failure: Mapping[str, Any]) -> tuple[Any, ...]:
    """Quote the reason, which a site may have worded: no spreadsheet computes it."""
    return failure["round"], failure["client"], json.dumps(failure["reason"])


def _failure(server_round: int, client: int, reason: str) -> dict[str, Any]:
    return {"round": server_round, "client": client, "reason": json.loads(reason)}


def _ledger_row(e: LedgerEntry) -> tuple[Any, ...]:
    return (e.server_round, e.client, e.direction, e.record, e.bytes)
