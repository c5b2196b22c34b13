"""The results folder of a run: written as the run goes, usable whenever it stops."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.metrics import adjusted_rand_score

from strategies.base import AbstractGraphStrategy
from strategies.report import Evaluation, LedgerEntry, RoundReport

from . import selection
from .agreement import describe_features
from .errors import ConfigError, DataError
from .figures_data import round_file
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

ROUNDS = ("round", "client", "split", "point", "metric", "value", "num_examples")
TIMES = ("round", "wall_s", "busy_s", "client_compute_s")
LEDGER = ("round", "client", "direction", "record", "bytes")
APPENDED = ("rounds.csv", "ledger.csv", "times.csv")
OWNERSHIP = ("own", "unseen")  # tasks of which a client has labels, and the others
_TABLES = {"post_aggregation": "", "post_training": selection.TRAINED}
# May differ between a run and its continuation.
RESUME_MAY_CHANGE = {
    "resume",
    "num-server-rounds",
    "results-dir",
    "state-dir",
    "data-dir",
    "cache-dir",
    "min-fit-replies",
    "round-timeout-s",
    "roll-call-timeout-s",
    "torch-threads",
}


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


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically."""
    partial = path.with_suffix(".tmp")
    partial.write_text(json.dumps(value, indent=2, sort_keys=False) + "\n")
    partial.replace(path)


class RunFolder:
    """Writes the CSV files, checkpoints, models and the summary of a run.

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
        self.bytes = {"up": 0, "down": 0, "evaluation": 0}
        self.times = {"wall_s": 0.0, "client_compute_s": 0.0, "busy_s": 0.0}
        self.task = resolved.method.task
        self.tables: dict[str, selection.Table] = {
            prefix + s: {} for prefix in _TABLES.values() for s in self.task.splits
        }
        self.unscored: dict[tuple[str, int], selection.Table] = {}
        self.by_ownership: dict[tuple[str, str], selection.Table] = {}
        self.last_round = 0
        path.mkdir(parents=True, exist_ok=True)
        (path / "checkpoint").mkdir(exist_ok=True)

    @classmethod
    def create(cls, resolved: Resolved, *, run_id: int) -> RunFolder:
        """Make the folder ``<UTC>-<method>-<dataset>-<seed>-<short run id>``."""
        s = resolved.settings
        root, _ = results_root(s.results_dir)
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        short = f"{run_id:x}"[:8]
        dataset = s.dataset.replace(":", "-")
        folder = cls(
            root / f"{stamp}-{s.method}-{dataset}-{s.seed}-{short}",
            resolved,
            run_id=str(run_id),
        )
        folder._write_header("rounds.csv", ROUNDS)
        folder._write_header("ledger.csv", LEDGER)
        folder._write_header("times.csv", TIMES)
        write_json(folder.path / "config.json", resolved.to_config())
        return folder

    @property
    def experiment(self) -> str:
        """Name under which clients keep their state; the same after a resume."""
        return self.path.name

    def _write_header(self, name: str, columns: tuple[str, ...]) -> None:
        with (self.path / name).open("w", newline="") as file:
            csv.writer(file).writerow(columns)

    # While the run goes on -------------------------------------------------------

    def record(self, report: RoundReport) -> None:
        """Append one round."""
        self._append("rounds.csv", [_evaluation_row(e) for e in report.evaluations])
        self._append("ledger.csv", [_ledger_row(e) for e in report.ledger])
        seconds = (report.wall_s, report.busy_s, report.client_compute_s)
        self._append("times.csv", [(report.server_round, *seconds)])
        self._remember(report.evaluations, report.ledger)
        self.times["wall_s"] += report.wall_s
        self.times["client_compute_s"] += report.client_compute_s
        self.times["busy_s"] += report.busy_s
        self.failures += [
            {"round": report.server_round, "client": c, "reason": r}
            for c, r in sorted(report.failures.items())
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
        if not report.arrays:
            return
        target = round_file(self.path, report.server_round)
        target.parent.mkdir(exist_ok=True)
        partial = target.with_suffix(".tmp")
        contiguous = {n: np.asarray(a, order="C") for n, a in report.arrays.items()}
        save_file(contiguous, partial)
        partial.replace(target)

    def _append(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        with (self.path / name).open("a", newline="") as file:
            csv.writer(file).writerows(rows)

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
        """Save the server's state after a round, atomically; keeps the last two."""
        arrays, facts = strategy.state()
        meta = {
            "round": self.last_round,
            "experiment": self.experiment,
            "facts": facts,
            "clusters": self.clusters,
            "snapshots": self.snapshots,
            "failures": self.failures,
            "times": self.times,
            "bytes": self.bytes,
            "sizes": {n: (self.path / n).stat().st_size for n in APPENDED},
        }
        target = self.path / "checkpoint" / f"round-{self.last_round:06d}.safetensors"
        partial = target.with_suffix(".tmp")
        contiguous = {n: np.asarray(a, order="C") for n, a in arrays.items()}
        save_file(contiguous, partial, metadata={"meta": json.dumps(meta)})
        partial.replace(target)
        for old in sorted(target.parent.glob("round-*.safetensors"))[:-2]:
            old.unlink()

    @classmethod
    def resume(
        cls, path: Path, resolved: Resolved, *, run_id: int
    ) -> tuple[RunFolder, NamedArrays, dict[str, Any]]:
        """Reopen a run's folder at its last checkpoint.

        Returns the folder, the server's arrays and its facts.

        Raises
        ------
        ConfigError
            No checkpoint there, or the run's configuration differs.
        """
        found = sorted((path / "checkpoint").glob("round-*.safetensors"))
        if not found:
            raise ConfigError(
                f"resume = {str(path)!r} holds no checkpoint/round-*.safetensors; give"
                " the absolute path of a results folder"
            )
        _check_same_config(path, resolved)
        meta, arrays = _read_checkpoint(found[-1])
        if meta["round"] > resolved.settings.num_server_rounds:
            raise ConfigError(
                f"num-server-rounds is {resolved.settings.num_server_rounds}, but the"
                f" run to resume has done {meta['round']}; set it higher"
            )
        folder = cls(path, resolved, run_id=str(run_id))
        folder.resumed_from = folder.last_round = int(meta["round"])
        folder.clusters = meta["clusters"]
        folder.snapshots = [(r, list(m)) for r, m in meta["snapshots"]]
        folder.failures = meta["failures"]
        folder.times, folder.bytes = meta["times"], meta["bytes"]
        for name, size in meta["sizes"].items():
            os.truncate(path / name, size)  # drop rows of a round that did not finish
        folder._reread()
        write_json(path / "config.json", resolved.to_config())
        return folder, arrays, meta["facts"]

    def _reread(self) -> None:
        with (self.path / "rounds.csv").open(newline="") as file:
            for row in csv.DictReader(file):
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
        """Write models and ``summary.json``; also for a failed run."""
        before = self.path / "summary.json"
        if error is not None and not strategy.clients and before.is_file():
            # A resume that reached no client has nothing to add to what is there.
            summary: dict[str, Any] = json.loads(before.read_text())
            summary |= {"status": "failed", "error": f"{type(error).__name__}: {error}"}
            write_json(before, summary)
            return summary
        models = strategy.models() if self.last_round else {}
        (self.path / "models").mkdir(exist_ok=True)
        for name, arrays in models.items():
            contiguous = {n: np.asarray(a, order="C") for n, a in arrays.items()}
            save_file(contiguous, self.path / "models" / f"{name}.safetensors")
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
        task = self.task
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
            "rules": list(task.rules),
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
                for rule in task.rules
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
            "network": network_facts(strategy),
            "run_id": self.run_id,
            "experiment": self.experiment,
            "resumed_from_round": self.resumed_from,
            "privacy": _spent(strategy, s.features),
            **_disclosed(strategy),
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


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], NamedArrays]:
    try:
        with safe_open(path, framework="numpy") as file:
            meta: dict[str, Any] = json.loads(file.metadata()["meta"])
            return meta, {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"checkpoint {path} cannot be read: {error}; delete it to resume from the"
            " round before"
        ) from error


def _check_same_config(path: Path, resolved: Resolved) -> None:
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"resume = {str(path)!r} holds no config.json; give the absolute path of a"
            " results folder"
        )
    before = json.loads((path / "config.json").read_text())
    now = resolved.to_config()
    for key in sorted(set(before) | set(now)):
        if key not in RESUME_MAY_CHANGE and before.get(key) != now.get(key):
            raise ConfigError(
                f"cannot resume {path}: {key} was {before.get(key)!r} and is now"
                f" {now.get(key)!r}; only {', '.join(sorted(RESUME_MAY_CHANGE))} may"
                " change"
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
