"""What a run has measured so far: scores, clusters, failures, bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from strategies.round_report import HELD_OUT, LedgerEntry, RoundReport

from ..core.tasks import (
    AVERAGE_PRECISION,
    BY_TASK,
    NO_SCORE,
    OF_MEAN,
    ON_ALL,
    ONE_CLASS,
    Task,
)
from .selection import LOSS, PRECISION, TRAINED, Table, summarize

OWNERSHIP = ("own", "unseen")  # tasks of which a client has labels, and the others
_TABLES = {"post_aggregation": "", "post_training": TRAINED}
_CHOOSING = {"loss": LOSS, AVERAGE_PRECISION: PRECISION}  # on validation items


class RunRecord:
    """Sums up the reports of rounds, for checkpoints and the summary.

    Parameters
    ----------
    task : Task
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.last_round = 0
        self.clusters: dict[str, list[list[int]]] = {}
        self.snapshots: list[tuple[int, list[int]]] = []
        self.failures: list[dict[str, Any]] = []
        self.fresh_starts: list[dict[str, int]] = []
        self.bytes = {"up": 0, "down": 0, "evaluation": 0}
        self.times = {"wall_s": 0.0, "client_compute_s": 0.0, "busy_s": 0.0}
        self.tables: dict[str, Table] = {
            prefix + s: {}
            for prefix in _TABLES.values()
            for split in task.splits
            for s in (split, *(split + m for m in _CHOOSING.values() if split == "val"))
        }
        self.by = ""  # or PRECISION or LOSS, by which rounds are chosen then
        self.one_class: dict[str, Table] = {prefix: {} for prefix in _TABLES.values()}
        self.unscored: dict[tuple[str, int], Table] = {}
        self.by_ownership: dict[tuple[str, str], Table] = {}
        self.also: dict[str, Table] = {
            prefix + m: {} for prefix in _TABLES.values() for m in task.also
        }
        errors = () if task.larger_is_better else (task.metric, task.metric + OF_MEAN)
        self.by_task: dict[str, dict[int, Table]] = {name: {} for name in errors}
        self.on_all: Table = {}
        self.held_out: dict[str, Table] = {m: {} for m in (task.metric, *task.also)}

    def add(self, report: RoundReport) -> list[dict[str, Any]]:
        """Add one round, complete or not; return its failures."""
        for e in report.evaluations:
            where = e.split, e.point, e.metric
            self._remember(where, e.server_round, e.client, e.value)
        self._add_bytes(report.ledger)
        self.times["wall_s"] += report.wall_s
        self.times["client_compute_s"] += report.client_compute_s
        self.times["busy_s"] += report.busy_s
        failed = [
            {"round": report.server_round, "client": c, "reason": r}
            for c, r in sorted(report.failures.items())
        ]
        self.failures += failed
        self.fresh_starts += [
            {"round": report.server_round, "client": c, "lost_round": r}
            for c, r in sorted(report.facts.get("fresh_starts", {}).items())
        ]
        if report.is_complete:
            self.last_round = report.server_round
            found = report.facts["clusters"]
            before = self.clusters.get(str(report.server_round - 1))
            if before is not None and before == found:
                found = before  # once in memory: of 10,000 clients they take 80 kB
            self.clusters[str(report.server_round)] = found
            self.snapshots += [
                (report.server_round, members)
                for members in report.facts.get("snapshots", [])
            ]
        return failed

    def reread(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add scores that an earlier process wrote."""
        for number, client, split, point, metric, value, _ in rows:
            self._remember((split, point, metric), number, client, float(value))

    def to_json(self) -> dict[str, Any]:
        """Everything but scores and failures, which have files of their own.

        Clusters stand under the rounds in which they changed: a checkpoint must not
        grow with every round.
        """
        changed: dict[str, list[list[int]]] = {}
        last: list[list[int]] | None = None
        for number, found in self.clusters.items():
            if found != last:
                changed[number] = last = found
        return {
            "round": self.last_round,
            "clusters": changed,
            "snapshots": self.snapshots,
            "fresh_starts": self.fresh_starts,
            "times": self.times,
            "bytes": self.bytes,
        }

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Set what :meth:`to_json` returned."""
        self.last_round = int(facts["round"])
        self.clusters = {}
        for number in map(str, range(1, self.last_round + 1)):
            found = facts["clusters"].get(number)
            if found is None:
                found = self.clusters[str(int(number) - 1)]
            self.clusters[number] = found
        self.snapshots = [(r, list(m)) for r, m in facts["snapshots"]]
        self.fresh_starts = facts["fresh_starts"]
        self.times, self.bytes = facts["times"], facts["bytes"]

    def chosen_by(self) -> str:
        """Metric of the validation items by which rounds are chosen."""
        names = {table: metric for metric, table in _CHOOSING.items()}
        return names.get(self.by, self.task.metric)

    def mean_score(self, split: str, server_round: int) -> float:
        """Unweighted client mean after aggregation; NaN if nothing was measured."""
        values = self.tables[split].get(server_round, {})
        return float(np.mean(list(values.values()))) if values else float("nan")

    def also_at(self, server_round: int, rule: str) -> dict[str, Any]:
        """Metrics beside the headline's, after the round that a rule read.

        ``also`` has their means over the clients that have such a score,
        ``also_per_client`` each client's. ``one_class`` has the class of clients whose
        items are all predicted to be one.
        """
        prefix = TRAINED if rule == "best_val_trained" else ""
        tables = {m: self.also[prefix + m] for m in self.task.also}
        found = self._also(tables, server_round)
        if constant := self.one_class[prefix].get(server_round):
            found["one_class"] = {str(c): int(constant[c]) for c in sorted(constant)}
        return found

    def by_task_at(
        self, server_round: int, tasks: Sequence[str]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Errors of each target after a round, by client, and those of its mean."""
        return {
            metric: {
                tasks[task]: {str(c): values[c] for c in sorted(values)}
                for task, table in sorted(found.items())
                if (values := table.get(server_round, {}))
            }
            for metric, found in self.by_task.items()
        }

    def held_out_at(self, server_round: int) -> dict[str, Any]:
        """Scores of clients that never train, on the models after a round."""
        values = self.held_out[self.task.metric].get(server_round, {})
        beside = {m: self.held_out[m] for m in self.task.also}
        return summarize(values, "final") | self._also(beside, server_round)

    def on_all_at(
        self, server_round: int, sizes: Mapping[int, int], *, is_one_model: bool
    ) -> dict[str, Any]:
        """Scores of clients' models on the test sets of all, after the last round.

        Parameters
        ----------
        server_round : int
        sizes : mapping
            Client -> size of its test set.
        is_one_model : bool
            All clients have the same model. If none scored its model elsewhere, the
            score is then the mean of their own, weighted by sizes.
        """
        values = self.on_all.get(server_round, {})
        if is_one_model and not values:
            own = {
                **self.tables[self.task.headline].get(server_round, {}),
                **self.held_out[self.task.metric].get(server_round, {}),
            }
            if total := sum(sizes[c] for c in own):
                mean = sum(sizes[c] * own[c] for c in sorted(own)) / total
                values = dict.fromkeys(own, mean)
        return summarize(values, "final")

    def _also(self, tables: Mapping[str, Table], server_round: int) -> dict[str, Any]:
        found = {m: table.get(server_round) for m, table in tables.items()}
        return {
            "also": {m: fmean(v.values()) for m, v in found.items() if v},
            "also_per_client": {
                m: {str(c): v[c] for c in sorted(v)} for m, v in found.items() if v
            },
        }

    def own_and_unseen(self, last: int) -> dict[str, dict[str, float]] | None:
        """Client means over own and unseen tasks after the last round, by point.

        "post_training" is before mixing, if that is measured. None if every client has
        all tasks.
        """
        found: dict[str, dict[str, float]] = {}
        for (point, whose), table in sorted(self.by_ownership.items()):
            if values := table.get(last):
                found.setdefault(point, {})[whose] = fmean(values.values())
        return found if any("unseen" in means for means in found.values()) else None

    def _remember(
        self, where: tuple[str, str, str], server_round: int, client: int, value: float
    ) -> None:
        if (table := self._table(*where)) is not None:
            table.setdefault(server_round, {})[client] = value

    def _add_bytes(self, ledger: Iterable[LedgerEntry]) -> None:
        for entry in ledger:
            self.bytes[entry.direction] += entry.bytes
            if entry.record == "evaluation":
                self.bytes["evaluation"] += entry.bytes

    def _table(self, split: str, point: str, metric: str) -> Table | None:
        """Table that an evaluation belongs to; None if no result is read from it."""
        if metric == self.task.metric + ON_ALL:
            return self.on_all
        if point == HELD_OUT:
            is_read = split == self.task.headline
            return self.held_out.get(metric) if is_read else None
        if metric.startswith(NO_SCORE):
            task = int(metric.removeprefix(NO_SCORE))
            return self.unscored.setdefault((split, task), {})
        name, _, number = metric.partition(BY_TASK)
        if number and name in self.by_task:
            is_read = (split, point) == (self.task.headline, "post_aggregation")
            return self.by_task[name].setdefault(int(number), {}) if is_read else None
        if point in _TABLES and split == "val" and metric in _CHOOSING:
            return self.tables.get(_TABLES[point] + split + _CHOOSING[metric])
        if metric == ONE_CLASS:
            return self.one_class.get(_TABLES.get(point, "none"))
        if metric in self.task.also and split == self.task.headline:
            return self.also[_TABLES[point] + metric] if point in _TABLES else None
        whose = metric.removeprefix(f"{self.task.metric}-")
        if split == self.task.headline and whose in OWNERSHIP:
            return self.by_ownership.setdefault((point, whose), {})
        if metric != self.task.metric or point not in _TABLES:
            return None
        return self.tables.get(_TABLES[point] + split)
