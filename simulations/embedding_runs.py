"""Find runs of the task "unsupervised graph embedding" and read their scores."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedgraph_flwr.embedding_scores import METRICS, TRANSFORMS
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.results.selection import Table
from fedgraph_flwr.tasks import GRAPH_EMBEDDING, POOLED

from .compare_runs import Run, find_runs

SMALL = 1e-9  # of rounding, in accuracies and points


@dataclass(frozen=True, kw_only=True)
class EmbeddingRun:
    """One completed run: its summary and the scores in its ``rounds.csv``.

    ``tables``: metric -> round -> client -> value; the one client is ``POOLED`` where
    the graphs of all clients were clustered together. ``num_graphs``: evaluated in
    every round that is kept here.
    """

    run: Run
    tables: Mapping[str, Table]
    num_graphs: int

    @property
    def is_pooled(self) -> bool:
        """Whether all graphs were clustered together, as in the paper."""
        return self.run.settings.get("embedding.evaluation") == "pooled"

    @property
    def is_centralised(self) -> bool:
        """Whether one client holds all graphs."""
        return self.num_clients == 1

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.run.split[2]

    @property
    def last_round(self) -> int:
        """Round of the final model."""
        return int(self.run.summary["rounds"])

    @property
    def emd(self) -> float | None:
        """EMD of the split; unknown where a site keeps its counts of classes."""
        value = self.run.summary.get("emd")
        return None if value is None else float(value)

    @property
    def commit(self) -> str:
        """Commit of the code, short, with "+dirty" for local changes."""
        commit, plus, dirty = str(
            self.run.summary.get("git_commit") or "unknown"
        ).partition("+")
        return commit[:8] + plus + dirty

    @property
    def rounds(self) -> list[int]:
        """Rounds that were evaluated."""
        return sorted(self.tables[GRAPH_EMBEDDING.metric])

    def scores(self, server_round: int) -> dict[str, float]:
        """Metric -> value after a round; unweighted mean where clients are apart."""
        return {
            metric: sum(table[server_round].values()) / len(table[server_round])
            for metric, table in self.tables.items()
            if table.get(server_round)
        }


@dataclass(kw_only=True)
class FoundEmbeddings:
    """Usable runs, and a line on whatever is not used."""

    runs: list[EmbeddingRun] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def find_embeddings(folders: Iterable[Path]) -> FoundEmbeddings:
    """Search folders for completed runs of the task.

    Returns
    -------
    FoundEmbeddings
        In ``left_out`` stand failed, unfinished and unreadable runs, runs of another
        task, runs whose last round was not evaluated or on a part of the graphs only,
        rounds that were evaluated on a part only, and all but the newest of equal runs.

    Raises
    ------
    FedGraphError
        A folder does not exist, or no run of the task can be used.
    """
    found = find_runs(folders)
    result = FoundEmbeddings(left_out=list(found.left_out))
    for run in found.runs:
        task = str(run.summary.get("task"))
        if task != GRAPH_EMBEDDING.name:
            result.left_out.append(
                f"{run.path}: task {task!r}; its table is python -m simulations.compare"
            )
            continue
        try:
            read, partial = _read(run)
        except (KeyError, TypeError, ValueError, OSError) as error:
            result.left_out.append(f"{run.path}: rounds.csv is not usable: {error}")
            continue
        result.left_out += partial
        result.runs.append(read)
    if not result.runs:
        raise FedGraphError(
            f"none of the {len(result.left_out)} runs found is a completed run of"
            f" {GRAPH_EMBEDDING.name}; there is nothing to put in a table:\n"
            + "\n".join(f"  {line}" for line in result.left_out)
        )
    return result


def _read(run: Run) -> tuple[EmbeddingRun, list[str]]:
    """Read ``rounds.csv``; ValueError where the last round cannot be used."""
    tables: dict[str, Table] = {}
    sizes: dict[int, dict[int, int]] = {}  # round -> client -> graphs
    with (run.path / "rounds.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["split"], row["point"]) != ("all", "post_aggregation"):
                continue
            at, client, value = (
                int(row["round"]),
                int(row["client"]),
                float(row["value"]),
            )
            if not math.isfinite(value):
                raise ValueError(f"{row['metric']} after round {at} is {value}")
            tables.setdefault(row["metric"], {}).setdefault(at, {})[client] = value
            sizes.setdefault(at, {})[client] = int(row["num_examples"])
    metric, last = GRAPH_EMBEDDING.metric, int(run.summary["rounds"])
    if last not in tables.get(metric, {}):
        raise ValueError(f"no {metric} after the last round, {last}")
    for name in (f"{m}-{t}" for m in METRICS for t in TRANSFORMS):
        if tables.get(name, {}).keys() != tables[metric].keys():
            raise ValueError(f"{name} is missing in a round that has {metric}")
    num_graphs = {at: sum(of.values()) for at, of in sizes.items()}
    most = max(num_graphs.values())
    if num_graphs[last] < most:
        raise ValueError(
            f"after the last round, {last}, {num_graphs[last]} of {most} graphs were"
            " evaluated: a client did not answer"
        )
    dropped = sorted(at for at, n in num_graphs.items() if n < most)
    for table in tables.values():
        for at in dropped:
            table.pop(at, None)
    result = EmbeddingRun(run=run, tables=tables, num_graphs=most)
    if result.is_pooled != (set(tables[metric][last]) == {POOLED}):
        raise ValueError("its clients do not fit embedding.evaluation")
    final = float(run.summary["final"]["mean"])
    if abs(final - result.scores(last)[metric]) > SMALL:
        raise ValueError(
            f"{metric} after round {last} is {result.scores(last)[metric]}, but"
            f" summary.json says {final}"
        )
    return result, [
        f"{run.path}, round {at}: {num_graphs[at]} of {most} graphs were evaluated"
        for at in dropped
    ]
