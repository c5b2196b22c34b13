"""What a run has measured so far: scores, clusters, failures, bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from strategies.round_report import HELD_OUT, LedgerEntry, RoundReport

from ..core.attack_settings import APART, SUCCESS, UNTRIGGERED
from ..core.robust_settings import LEFT_OUT, WEIGHT
from ..core.tasks import (
    BY_TASK,
    CONFUSION,
    NO_SCORE,
    OF_MEAN,
    ON_ALL,
    ONE_CLASS,
    THRESHOLD,
    Task,
)
from .selection import RECEIVED, TRAINED, Table, summarize

COUNTED = ("train", "update", WEIGHT)  # how much clients did in averages by a rule
SPREAD = ("train", "update", APART)
OWNERSHIP = ("own", "unseen")  # tasks of which a client has labels, and the others


class RunRecord:
    """Sums up the reports of rounds, for checkpoints and the summary."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.last_round = 0
        self.clusters: dict[str, list[list[int]]] = {}
        self.snapshots: list[tuple[int, list[int]]] = []
        self.failures: list[dict[str, Any]] = []
        self.fresh_starts: list[dict[str, int]] = []
        self.bytes = {"up": 0, "down": 0, "evaluation": 0}
        self.times = {"wall_s": 0.0, "client_compute_s": 0.0, "busy_s": 0.0}
        self.by = ""  # metric of validation items that chooses rounds; "": the task's
        self._tables: dict[tuple[str, str, str], Table] = {}

    def table(self, metric: str = "", split: str = "", point: str = RECEIVED) -> Table:
        """Values of a metric by round and client; empty if it was not measured.

        Without names: the task's metric on the split of its headline.
        """
        where = split or self.task.headline, point, metric or self.task.metric
        return self._tables.get(where, {})

    @property
    def unscored(self) -> dict[tuple[str, int], set[int]]:
        """Clients whose labels of a task allow no score, by split and task."""
        found: dict[tuple[str, int], set[int]] = {}
        for (split, point, metric), table in self._tables.items():
            if metric.startswith(NO_SCORE) and point != HELD_OUT:
                task = split, int(metric.removeprefix(NO_SCORE))
                found.setdefault(task, set()).update(*table.values())
        return found

    def add(self, report: RoundReport) -> list[dict[str, Any]]:
        """Add one round, complete or not; return its failures."""
        for e in report.evaluations:
            where = e.split, e.point, e.metric
            self._add(where, e.server_round, e.client, e.value)
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
            self._add((split, point, metric), number, client, float(value))

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

    def mean_score(self, server_round: int, metric: str = "", split: str = "") -> float:
        """Unweighted client mean after aggregation; NaN if nothing was measured."""
        values = self.table(metric, split).get(server_round, {})
        return float(np.mean(list(values.values()))) if values else float("nan")

    def also_at(self, server_round: int, rule: str) -> dict[str, Any]:
        """Metrics beside the headline's, after the round that a rule read.

        ``also`` has their means over the clients that have such a score,
        ``also_per_client`` each client's. ``one_class`` has the class of clients whose
        items are all predicted to be one.
        """
        point = TRAINED if rule == "best_val_trained" else RECEIVED
        found = self._also(server_round, point)
        if constant := self.table(ONE_CLASS, point=point).get(server_round):
            found["one_class"] = {str(c): int(constant[c]) for c in sorted(constant)}
        return found

    def confusion_at(
        self, server_round: int, rule: str, names: Mapping[str, str]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Count test items by class or target, and client, called by a threshold.

        ``names`` are those of classes or targets, by what follows a metric's name.
        """
        point = TRAINED if rule == "best_val_trained" else RECEIVED
        found: dict[str, dict[str, dict[str, float]]] = {}
        for end, name in names.items():
            split_of = {THRESHOLD: "val", **dict.fromkeys(CONFUSION, "test")}
            tables = {
                m: self.table(m + end, split, point).get(server_round, {})
                for m, split in split_of.items()
            }
            clients = {
                str(c): {m: of[c] for m, of in tables.items() if c in of}
                for c in sorted(tables[CONFUSION[0]])
            }
            found |= {name: clients} if clients else {}
        return found

    def by_task_at(
        self, server_round: int, tasks: Sequence[str]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Errors of each target after a round, by client, and those of its mean."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for metric in (self.task.metric, self.task.metric + OF_MEAN):
            of_tasks = (self.table(f"{metric}{BY_TASK}{k}") for k in range(len(tasks)))
            found[metric] = {
                name: {str(c): values[c] for c in sorted(values)}
                for name, table in zip(tasks, of_tasks, strict=True)
                if (values := table.get(server_round, {}))
            }
        return found

    def counted(self) -> dict[str, dict[str, float]]:
        """How much each client counted in averages by a rule, over its rounds."""
        of_clients: dict[int, list[float]] = {}
        for _, found in sorted(self._tables.get(COUNTED, {}).items()):
            for client, weight in found.items():
                of_clients.setdefault(client, []).append(weight)
        return {
            str(client): {
                "rounds": len(weights),
                "left_out": sum(w < LEFT_OUT for w in weights),
                "mean_weight": fmean(weights),
            }
            for client, weights in sorted(of_clients.items())
        }

    def spread(self) -> dict[str, float]:
        """How unlike honest updates were in each round (h), in lengths of their mean.

        Empty without an attack and without a rule.
        """
        return {
            str(number): math.sqrt(fmean(v * v for v in of_clients.values()))
            for number, of_clients in sorted(self._tables.get(SPREAD, {}).items())
        }

    def trigger_shares(self, server_round: int) -> dict[str, float]:
        """Means over honest clients of what a trigger does to the model of a round."""
        tables = {m: self.table(m, "test") for m in (SUCCESS, UNTRIGGERED)}
        found = {m: of.get(server_round) for m, of in tables.items()}
        return {m: fmean(v.values()) for m, v in found.items() if v}

    def held_out_at(self, server_round: int) -> dict[str, Any]:
        """Scores of clients that never train, on the models after a round."""
        values = self.table(point=HELD_OUT).get(server_round, {})
        return summarize(values, "final") | self._also(server_round, HELD_OUT)

    def on_all_at(
        self, server_round: int, sizes: Mapping[int, int], *, is_one_model: bool
    ) -> dict[str, Any]:
        """Scores of clients' models on the test sets of all, after the last round.

        Parameters
        ----------
        sizes : mapping
            Client -> size of its test set.
        is_one_model : bool
            All clients have the same model. If none scored its model elsewhere, the
            score is then the mean of their own, weighted by sizes.
        """
        values = self.table(self.task.metric + ON_ALL).get(server_round, {})
        if is_one_model and not values:
            own = {
                **self.table().get(server_round, {}),
                **self.table(point=HELD_OUT).get(server_round, {}),
            }
            if total := sum(sizes[c] for c in own):
                mean = sum(sizes[c] * own[c] for c in sorted(own)) / total
                values = dict.fromkeys(own, mean)
        return summarize(values, "final")

    def _also(self, server_round: int, point: str) -> dict[str, Any]:
        found = {
            m: self.table(m, point=point).get(server_round) for m in self.task.also
        }
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
        for point in (RECEIVED, TRAINED):
            for whose in OWNERSHIP:
                table = self.table(f"{self.task.metric}-{whose}", point=point)
                if values := table.get(last):
                    found.setdefault(point, {})[whose] = fmean(values.values())
        return found if any("unseen" in means for means in found.values()) else None

    def _add(
        self, where: tuple[str, str, str], number: int, client: int, value: float
    ) -> None:
        if where[1] in (RECEIVED, TRAINED, HELD_OUT) or where in (COUNTED, SPREAD):
            self._tables.setdefault(where, {}).setdefault(number, {})[client] = value

    def _add_bytes(self, ledger: Iterable[LedgerEntry]) -> None:
        for entry in ledger:
            self.bytes[entry.direction] += entry.bytes
            if entry.record == "evaluation":
                self.bytes["evaluation"] += entry.bytes
