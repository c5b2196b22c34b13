"""The results folder of a run: written as the run goes, usable whenever it stops."""

from __future__ import annotations

import csv
import hashlib
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from strategies.base import AbstractGraphStrategy
from strategies.report import Evaluation, LedgerEntry, RoundReport

from . import selection
from .agreement import describe_features
from .checkpoints import (
    GrowingFiles,
    Mark,
    checkpoint_path,
    checkpoint_rounds,
    delete_to_go_back,
    lock_folder,
    read_checkpoint,
    read_config,
    write_checkpoint,
)
from .config import RESUME_MAY_CHANGE
from .errors import ConfigError, DataError, StorageError
from .figures_data import round_file
from .files import write_arrays, write_json, write_npz
from .network import network_facts
from .privacy import describe, edge_totals
from .provenance import (
    class_table,
    git_commit,
    hash_weights,
    partition_distance,
    split_hash,
    versions,
)
from .registry import Resolved
from .tasks import NO_SCORE
from .wire import NamedArrays

ROUNDS, LEDGER, TIMES = "rounds.csv", "ledger.csv", "times.csv"
COLUMNS = {
    ROUNDS: ("round", "client", "split", "point", "metric", "value", "num_examples"),
    LEDGER: ("round", "client", "direction", "record", "bytes"),
    TIMES: ("round", "wall_s", "busy_s", "client_compute_s"),
}
OWNERSHIP = ("own", "unseen")  # tasks of which a client has labels, and the others
_TABLES = {"post_aggregation": "", "post_training": selection.TRAINED}


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
    return Path.home() / "fedgraph-results", (
        "neither results-dir nor FEDGRAPH_HOME is set"
    )


class RunFolder:
    """Writes the CSV files, checkpoints, models and the summary of a run.

    One process writes to a folder at a time; it is free again after :meth:`close`.

    Parameters
    ----------
    path : path
        The run's folder; created here unless the run is resumed.
    resolved : Resolved
    run_id : str
    """

    def __init__(self, path: Path, resolved: Resolved, *, run_id: str) -> None:
        self.path = path
        self.resolved = resolved
        self.run_id = run_id
        self.resumed_from: int | None = None
        self.clusters: dict[str, list[list[int]]] = {}
        self.snapshots: list[tuple[int, list[int]]] = []
        self.failures: list[dict[str, Any]] = []
        self.fresh_starts: list[dict[str, int]] = []
        self.bytes = {"up": 0, "down": 0, "evaluation": 0}
        self.times = {"wall_s": 0.0, "client_compute_s": 0.0, "busy_s": 0.0}
        self.task = resolved.method.task
        self.tables: dict[str, selection.Table] = {
            prefix + s: {} for prefix in _TABLES.values() for s in self.task.splits
        }
        self.unscored: dict[tuple[str, int], selection.Table] = {}
        self.by_ownership: dict[tuple[str, str], selection.Table] = {}
        self.last_round = 0
        self.oldest_checkpoint = 0
        self._files = GrowingFiles(path, COLUMNS)
        self._resumed_at: Mapping[str, Mark] | None = None  # until a round is done,
        self._held: list[RoundReport] = []  # and what came before that
        self._lock = lock_folder(path)

    @classmethod
    def create(cls, resolved: Resolved, *, run_id: int) -> RunFolder:
        """Make the folder ``<UTC>-<method>-<dataset>-<seed>-<short run id>``."""
        s = resolved.settings
        root, _ = results_root(s.results_dir)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        short = f"{run_id:x}"[:8]
        dataset = s.dataset.replace(":", "-")
        path = root / f"{stamp}-{s.method}-{dataset}-{s.seed}-{short}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the results folder {path}: {error}; set results-dir to a"
                " folder that can be written"
            ) from error
        folder = cls(path, resolved, run_id=str(run_id))
        try:
            for name, columns in COLUMNS.items():
                folder._files.append(name, [columns])
            write_json(path / "config.json", resolved.to_config())
        except BaseException:
            folder.close()
            raise
        return folder

    @property
    def experiment(self) -> str:
        """Name under which clients keep their state; the same after a resume."""
        return self.path.name

    def close(self) -> None:
        """Let others write to the folder."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    # While the run goes on -------------------------------------------------------

    def record(self, report: RoundReport) -> None:
        """Append one round.

        The first round that a resumed run completes drops the rows of the rounds that
        it repeats. Until then the folder stays as it was.
        """
        if self._resumed_at is not None:
            self._held.append(report)
            if not (report.is_complete or report.is_closing):
                return
            self._files.cut(self._resumed_at)
            # It told of the run as it ended before; another is written at the end.
            (self.path / "summary.json").unlink(missing_ok=True)
            write_json(self.path / "config.json", self.resolved.to_config())
            self._resumed_at = None
            for held in self._held:
                self.record(held)
            return
        self._files.append(ROUNDS, [_evaluation_row(e) for e in report.evaluations])
        self._files.append(LEDGER, [_ledger_row(e) for e in report.ledger])
        seconds = (report.wall_s, report.busy_s, report.client_compute_s)
        self._files.append(TIMES, [(report.server_round, *seconds)])
        for name, arrays in report.files.items():
            write_npz(self.path / name, arrays)
        self._remember(report.evaluations, report.ledger)
        self.times["wall_s"] += report.wall_s
        self.times["client_compute_s"] += report.client_compute_s
        self.times["busy_s"] += report.busy_s
        self.failures += [
            {"round": report.server_round, "client": c, "reason": r}
            for c, r in sorted(report.failures.items())
        ]
        self.fresh_starts += [
            {"round": report.server_round, "client": c, "lost_round": r}
            for c, r in sorted(report.facts.get("fresh_starts", {}).items())
        ]
        if report.is_complete:
            self._keep_arrays(report)
            self.last_round = report.server_round
            self.clusters[str(report.server_round)] = report.facts["clusters"]
            self.snapshots += [
                (report.server_round, members)
                for members in report.facts.get("snapshots", [])
            ]

    def _keep_arrays(self, report: RoundReport) -> None:
        """Write the round's arrays; a round that is repeated writes them again."""
        if report.arrays:
            write_arrays(round_file(self.path, report.server_round), report.arrays)

    def _remember(
        self, evaluations: list[Evaluation], ledger: list[LedgerEntry]
    ) -> None:
        for e in evaluations:
            table = self._table(e.split, e.point, e.metric)
            if table is not None:
                table.setdefault(e.server_round, {})[e.client] = e.value
        for entry in ledger:
            self.bytes[entry.direction] += entry.bytes
            if entry.record == "evaluation":
                self.bytes["evaluation"] += entry.bytes

    def is_score(self, point: str, metric: str) -> bool:
        """Whether results are read from such an evaluation."""
        return (point, metric) == ("post_aggregation", self.task.metric)

    def _table(self, split: str, point: str, metric: str) -> selection.Table | None:
        if metric.startswith(NO_SCORE):
            task = int(metric.removeprefix(NO_SCORE))
            return self.unscored.setdefault((split, task), {})
        whose = metric.removeprefix(f"{self.task.metric}-")
        if split == self.task.headline and whose in OWNERSHIP:
            return self.by_ownership.setdefault((point, whose), {})
        if metric != self.task.metric or point not in _TABLES:
            return None
        return self.tables.get(_TABLES[point] + split)

    def mean_score(self, split: str, server_round: int) -> float:
        """Unweighted client mean after aggregation; NaN where nothing was measured."""
        values = self.tables[split].get(server_round, {})
        return float(np.mean(list(values.values()))) if values else float("nan")

    def checkpoint(self, strategy: AbstractGraphStrategy) -> None:
        """Save the server's state after a round; keeps the last two.

        The strategy learns which is the oldest: clients keep what it needs.
        """
        arrays, facts = strategy.state()
        meta = {
            "round": self.last_round,
            "experiment": self.experiment,
            "facts": facts,
            "frame": strategy.frame_facts(),
            "clusters": self.clusters,
            "snapshots": self.snapshots,
            "failures": self.failures,
            "fresh_starts": self.fresh_starts,
            "times": self.times,
            "bytes": self.bytes,
            "marks": self._files.marks(),
        }
        strategy.keep_from = write_checkpoint(self.path, self.last_round, arrays, meta)

    @classmethod
    def resume(
        cls, path: Path, resolved: Resolved, *, run_id: int
    ) -> tuple[RunFolder, NamedArrays, dict[str, Any]]:
        """Reopen a run's folder at its last checkpoint; nothing in it changes yet.

        Returns the folder, the server's arrays and the facts of the checkpoint; without
        any of them where the run stopped in its first round, which is repeated.

        Raises
        ------
        ConfigError
            It is no results folder, another run writes to it, or the run's
            configuration differs.
        DataError
            The checkpoint, or a file that goes with it, is damaged.
        """
        before = read_config(path)
        folder = cls(path, resolved, run_id=str(run_id))
        try:
            _check_same_config(path, before, resolved)
            arrays, meta = folder._go_back(int(before["num-server-rounds"]))
        except BaseException:
            folder.close()
            raise
        return folder, arrays, meta

    def _go_back(self, planned: int) -> tuple[NamedArrays, dict[str, Any]]:
        """Set everything to what it was at the last checkpoint.

        A round that was the last of the ``planned`` ones, and is no more, is repeated
        where it was measured for that alone.
        """
        found, s = checkpoint_rounds(self.path), self.resolved.settings
        if planned in found[-1:] and planned < s.num_server_rounds:
            found = found[:-1] if planned % s.evaluate_every else found
        if not found:
            cure = "restore them from a copy, or start a new run"
            self._resumed_at = first = _header_marks()
            self._reread(self._files.read(first, cure)[ROUNDS])
            if (last := _last_round(self.path / ROUNDS)) > 1:
                raise DataError(
                    f"{self.path} has rows of round {last}, but its checkpoints are"
                    f" gone: {cure}"
                )
            self.resumed_from = 0
            return {}, {}
        self.oldest_checkpoint = found[0]
        arrays, meta = read_checkpoint(self.path, found[-1])
        self._check_place(meta)
        last = s.num_server_rounds
        if meta["round"] > last:
            raise ConfigError(
                f"num-server-rounds is {last}, but the run to resume has done"
                f" {meta['round']}; set it higher"
            )
        self.resumed_from = self.last_round = int(meta["round"])
        self.clusters = meta["clusters"]
        self.snapshots = [(r, list(m)) for r, m in meta["snapshots"]]
        self.failures, self.fresh_starts = meta["failures"], meta["fresh_starts"]
        self.times, self.bytes = meta["times"], meta["bytes"]
        self._resumed_at = meta["marks"]
        cure = delete_to_go_back(checkpoint_path(self.path, found[-1]))
        self._reread(self._files.read(meta["marks"], cure)[ROUNDS])
        return arrays, meta

    def _check_place(self, meta: Mapping[str, Any]) -> None:
        """Refuse a folder under another name: clients' states are under the first."""
        if meta["experiment"] != self.experiment:
            raise ConfigError(
                f"{self.path} was named {meta['experiment']!r} when its checkpoint was"
                " written, and clients keep their states under that name: give the"
                " folder that name again"
            )

    def _reread(self, lines: list[str]) -> None:
        for row in csv.DictReader(lines):
            table = self._table(row["split"], row["point"], row["metric"])
            if table is not None:
                scores = table.setdefault(int(row["round"]), {})
                scores[int(row["client"])] = float(row["value"])

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
        if error is not None and self._resumed_at is not None:
            return {}
        models = strategy.models() if self.last_round else {}
        (self.path / "models").mkdir(exist_ok=True)  # also where there is no model
        for name, arrays in models.items():
            write_arrays(self.path / "models" / f"{name}.safetensors", arrays)
        write_json(self.path / "clusters.json", {"rounds": self.clusters})
        summary = self._summary(strategy, models, error)
        write_json(self.path / "summary.json", summary)
        return summary

    def _summary(
        self,
        strategy: AbstractGraphStrategy,
        models: dict[str, NamedArrays],
        error: BaseException | None,
    ) -> dict[str, Any]:
        s = self.resolved.settings
        task, rules = self.task, self.task.rules_for(s)
        # A failed run has no closing evaluation: its last measured round is the one
        # before the last trained.
        measured = self.tables[task.headline]
        last = self.last_round if error is None else max(measured, default=0)
        clusters = self.clusters.get(str(self.last_round), [])
        groups = {c: i.group for c, i in sorted(strategy.clients.items())}
        planted = groups if groups and min(groups.values()) >= 0 else None
        return {
            "status": "completed" if error is None else "failed",
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "method": s.method,
            "dataset": s.dataset,
            "task": task.name,
            "metric": task.metric,
            "larger_is_better": task.larger_is_better,
            "split": task.headline,
            "rules": list(rules),
            "num_clients": s.num_clients,
            "rounds": self.last_round,
            "seed": s.seed,
            "split_seed": s.split_seed,
            "split_hash": split_hash(strategy.clients),
            **{
                rule: selection.read(
                    rule,
                    self.tables,
                    split=task.headline,
                    snapshots=self.snapshots,
                    last_round=last,
                    larger_is_better=task.larger_is_better,
                )
                for rule in rules
            },
            **_tasks(strategy, self.unscored),
            "own_and_unseen": self._own_and_unseen(last),
            "num_clusters": len(clusters),
            "clusters": clusters,
            "planted_groups": planted and {str(c): g for c, g in planted.items()},
            "adjusted_rand_index": _rand_index(clusters, planted),
            "bytes_up": self.bytes["up"],
            "bytes_down": self.bytes["down"],
            "bytes_up_evaluation": self.bytes["evaluation"],
            "wall_s": self.times["wall_s"],
            "client_compute_s": self.times["client_compute_s"],
            "overhead_s": self.times["wall_s"] - self.times["busy_s"],
            "weights_sha256": hash_weights(models, strategy.client_hashes),
            "failures": self.failures,
            "fresh_starts": self.fresh_starts,
            "network": network_facts(strategy),
            "run_id": self.run_id,
            "experiment": self.experiment,
            "resumed_from_round": self.resumed_from,
            "privacy": _spent(strategy, s.features),
            **_disclosed(strategy),
            **strategy.remarks(),
            "emd": partition_distance(strategy.clients),
            "class_counts": class_table(strategy.clients),
            "features": describe_features(strategy.clients),
            "data_sha256": {
                str(c): i.raw_sha256 for c, i in sorted(strategy.clients.items())
            },
            "finished_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "git_commit": git_commit(),
            "config": self.resolved.to_config(),
        }

    def _own_and_unseen(self, last: int) -> dict[str, dict[str, float]] | None:
        """Client means over own and unseen tasks after the last round, by point.

        "post_training" is before mixing, where that is measured; None where every
        client has all tasks.
        """
        found: dict[str, dict[str, float]] = {}
        for (point, whose), table in sorted(self.by_ownership.items()):
            if values := table.get(last):
                found.setdefault(point, {})[whose] = float(np.mean([*values.values()]))
        return found if any("unseen" in means for means in found.values()) else None


def _tasks(
    strategy: AbstractGraphStrategy, unscored: Mapping[tuple[str, int], selection.Table]
) -> dict[str, Any]:
    """Names of the tasks, who has labels of which, and which had no score at whom.

    Empty where graphs have no tasks.
    """
    infos = [i for _, i in sorted(strategy.clients.items())]
    if not infos or not infos[0].tasks:
        return {}
    without: dict[str, dict[str, list[int]]] = {}
    for (split, task), table in sorted(unscored.items()):
        clients = sorted({c for values in table.values() for c in values})
        without.setdefault(split, {})[infos[0].tasks[task]] = clients
    return {
        "tasks": list(infos[0].tasks),
        "tasks_without_score": without,
        "owned_tasks": {str(i.client): list(i.task_ids) for i in infos},
    }


def _spent(strategy: AbstractGraphStrategy, features: str) -> dict[str, Any] | None:
    """Say what clients have spent of their privacy; None if nothing is protected."""
    words = describe(strategy.spent, features=features)
    per_client = {str(c): s for c, s in sorted(strategy.spent.items()) if s}
    edges = {
        graph: total.to_json() for graph, total in edge_totals(strategy.spent).items()
    }
    if not words:
        return None
    return {"says": words, "edge_epsilon_per": edges, "per_client": per_client}


def _disclosed(strategy: AbstractGraphStrategy) -> dict[str, Any]:
    """Say which data of clients others saw; nothing where they saw none."""
    words = strategy.disclosed()
    return {"disclosed": words} if words else {}


def _header_marks() -> dict[str, Mark]:
    """Say how far the CSV files of a run are that has completed no round."""
    marks: dict[str, Mark] = {}
    for name, columns in COLUMNS.items():
        line = (",".join(columns) + "\r\n").encode()
        marks[name] = (len(line), hashlib.sha256(line).hexdigest())
    return marks


def _last_round(path: Path) -> int:
    """Last round in a CSV file, whose last row may be torn."""
    first = [line.partition(",")[0] for line in path.read_text().splitlines()]
    return max((int(word) for word in first if word.isdigit()), default=0)


def _check_same_config(
    path: Path, before: Mapping[str, Any], resolved: Resolved
) -> None:
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


def _rand_index(
    clusters: list[list[int]], planted: Mapping[int, int] | None
) -> float | None:
    """Agreement of clusters and planted groups; None where either is missing."""
    if not planted or not clusters:
        return None
    found = {c: k for k, members in enumerate(clusters) for c in members}
    order = sorted(planted)
    return float(
        adjusted_rand_score([planted[c] for c in order], [found[c] for c in order])
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


def _ledger_row(e: LedgerEntry) -> tuple[Any, ...]:
    return (e.server_round, e.client, e.direction, e.record, e.bytes)


class Clock:
    """Estimates the time left from the pace so far."""

    def __init__(self, done: int, total: int) -> None:
        self._begin, self._first, self._total = time.monotonic(), done, total

    def left(self, done: int) -> str:
        """Remaining time as ``m:ss``."""
        pace = (time.monotonic() - self._begin) / max(1, done - self._first)
        seconds = round(pace * (self._total - done))
        return f"{seconds // 60}:{seconds % 60:02d}"
