"""Scores of embeddings from a run's ``rounds.csv``, by metric and transform."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from fedgraph_flwr.embedding_scores import METRICS, TRANSFORMS
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.results.reader import ROUNDS, read_rows
from fedgraph_flwr.results.selection import Table
from fedgraph_flwr.tasks import GRAPH_EMBEDDING, POOLED

from .runs import Run

HEADLINE = GRAPH_EMBEDDING.metric
CLUSTERS = tuple(f"{metric}-{t}" for metric in METRICS for t in TRANSFORMS)
# Plain names are those of the run's own transform.
PLAIN = tuple(metric for metric in METRICS if metric != HEADLINE)
PROBES = ("probe-accuracy", "svm-accuracy")
ROUNDING = 1e-9
START = "start"  # the headline score of round 0
ROUND = "round-"  # and the round: its headline score


def embedding_scores(run: Run) -> tuple[dict[str, float], list[str]]:
    """Read the scores of clusters and probes; means over clients if they are apart.

    Returns
    -------
    scores : dict
        ``final:<metric>`` and ``start:<metric>`` (round 0) for ``PLAIN``, ``CLUSTERS``
        and ``PROBES``; ``start`` and ``round-<t>``: the headline in each evaluated
        round.
    partial : list of str
        Rounds left out because only a part of the graphs was evaluated.

    Raises
    ------
    DataError
        The last round was not evaluated or only in part; a metric is missing or not
        finite; the scores are not those of ``summary.json``.
    """
    try:
        tables, sizes = _read(run)
        last = int(run.summary["rounds"])
        partial = _drop_partial_rounds(tables, sizes, last)
        _check(run, tables, last)
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(f"{run.path}: rounds.csv is not usable: {error}") from error
    scores = {f"{ROUND}{t}": _mean(of) for t, of in tables[HEADLINE].items()}
    if f"{ROUND}0" in scores:
        scores[START] = scores.pop(f"{ROUND}0")
    for name, at in (("final", last), (START, 0)):
        for metric in (*PLAIN, *CLUSTERS, *PROBES):
            if of_clients := tables.get(metric, {}).get(at):
                scores[f"{name}:{metric}"] = _mean(of_clients)
    return scores, [f"{run.path}, {words}" for words in partial]


def _read(run: Run) -> tuple[dict[str, Table], dict[int, int]]:
    """Read metric -> round -> client -> value, and the number of graphs by round."""
    tables: dict[str, Table] = {}
    sizes: dict[int, dict[int, int]] = {}
    for row in read_rows(run.path / ROUNDS, ["all", "post_aggregation"]):
        number, client, _, _, metric, value, size = row
        if not math.isfinite(float(value)):
            raise ValueError(f"{metric} after round {number} is {value}")
        of_metric = tables.setdefault(metric, {}).setdefault(int(number), {})
        of_metric[int(client)] = float(value)
        sizes.setdefault(int(number), {})[int(client)] = int(size)
    return tables, {at: sum(of.values()) for at, of in sizes.items()}


def _drop_partial_rounds(
    tables: Mapping[str, Table], sizes: Mapping[int, int], last: int
) -> list[str]:
    """Remove rounds in which a client did not answer; ValueError for the last."""
    if last not in tables.get(HEADLINE, {}):
        raise ValueError(f"no {HEADLINE} after the last round, {last}")
    most = max(sizes.values())
    if sizes[last] < most:
        raise ValueError(
            f"after the last round, {last}, {sizes[last]} of {most} graphs were"
            " evaluated: a client did not answer"
        )
    dropped = sorted(at for at, n in sizes.items() if n < most)
    for table in tables.values():
        for at in dropped:
            table.pop(at, None)
    return [f"round {at}: {sizes[at]} of {most} graphs evaluated" for at in dropped]


def _check(run: Run, tables: Mapping[str, Table], last: int) -> None:
    """Raise ValueError if the tables contradict each other or the summary."""
    for name in (*PLAIN, *CLUSTERS):
        if tables.get(name, {}).keys() != tables[HEADLINE].keys():
            raise ValueError(f"{name} is missing in a round that has {HEADLINE}")
    is_pooled = run.settings.get("embedding.evaluation") == "pooled"
    if is_pooled != (set(tables[HEADLINE][last]) == {POOLED}):
        raise ValueError("its clients do not fit embedding.evaluation")
    found, final = _mean(tables[HEADLINE][last]), float(run.summary["final"]["mean"])
    if abs(final - found) > ROUNDING:
        raise ValueError(
            f"{HEADLINE} after round {last} is {found}, but summary.json has {final}"
        )


def _mean(of_clients: Mapping[int, float]) -> float:
    return statistics.fmean(of_clients.values())
