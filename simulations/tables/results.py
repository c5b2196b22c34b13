"""A run as a line of a table: its row, its seeds and its scores."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedgraph_flwr.errors import DataError
from fedgraph_flwr.registry import METHODS, load_class
from fedgraph_flwr.results.provenance import DIRTY
from fedgraph_flwr.results.reader import ROUNDS, blaming, read_rows
from fedgraph_flwr.results.selection import PROTOCOLS
from fedgraph_flwr.tasks import GRAPH_EMBEDDING, TASKS

from .embedding import START, embedding_scores
from .naming import row_name
from .runs import Found, Run

RULES = tuple(PROTOCOLS)
HELD_OUT, ON_ALL = "held-out clients", "on all clients"
METRICS = tuple(dict.fromkeys(m for t in TASKS for m in (t.metric, *t.also)))
ERRORS = frozenset(
    m for t in TASKS if not t.larger_is_better for m in (t.metric, *t.also)
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Scores of one run, a line of the CSV file.

    Parameters
    ----------
    row : str
        Name of a preset, with the settings that differ from it in brackets; or the name
        of a control.
    dataset : str
    seed, split_seed : int
        Runs are paired by both.
    split_hash : str
        First 12 digits.
    rounds : int
        Rounds trained.
    metric : str
        Name of the headline metric; "" in older files.
    edge_epsilon : float
        Most that a client's ledger counts for the edges of one of its graphs; 0 without
        noise.
    weights, commit : str
        First 12 digits of ``weights_sha256`` and of the commit, with "+" if files
        differed from the commit.
    wall_s : float
    data : str
        First 12 digits of a hash over all clients' files; "" if a client sends none, or
        if the file of results is older than this column.
    inert : str
        Why the run did nothing of the method's own; "" if it did.
    scores : mapping
        Measure -> value, without the measures that the run does not have. A measure is
        one of ``RULES``, ``start``, ``validation`` (the score by which ``best_val``
        chose), ``clusters``, ``ARI``, ``held-out clients``, ``on all clients``,
        ``<rule>:<metric>`` and ``start:<metric>`` of metrics beside the headline's, or
        ``round-<t>`` of embeddings.
    clients : mapping
        Rule, or ``<rule>:<metric>``, -> client -> score; empty unless the study needs
        single clients.
    """

    row: str
    dataset: str
    seed: int
    split_seed: int
    split_hash: str
    rounds: int
    metric: str = ""
    edge_epsilon: float = 0.0
    weights: str = ""
    commit: str = ""
    wall_s: float = 0.0
    data: str = ""
    inert: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, int, str]:
        """Key that no two results may share."""
        return self.row, self.seed, self.split_seed, self.split_hash

    @property
    def is_error(self) -> bool:
        """Whether smaller scores are better."""
        return self.metric in ERRORS


def read_results(found: Found, *, per_client: bool) -> tuple[list[Result], list[str]]:
    """Read the results of runs.

    Returns
    -------
    results : list of Result
    problems : list of str
        The reason for every run, and every round, that cannot be used.
    """
    results, problems = [], list(found.left_out)
    for run in found.runs:
        try:
            with blaming(run.path):
                row = row_name(run.method, run.dataset, run.settings)
            result, partial = from_run(run, row, per_client=per_client)
        except DataError as error:
            problems.append(str(error))
            continue
        results.append(result)
        problems += partial
    return results, problems


def from_run(run: Run, row: str, *, per_client: bool) -> tuple[Result, list[str]]:
    """Read one run as a result of ``row``.

    Returns
    -------
    result : Result
    partial : list of str
        Rounds of embeddings that were measured on a part of the graphs only.

    Raises
    ------
    DataError
        The embeddings of the last round were not measured on all graphs, or files are
        not as a run writes them.
    """
    s = run.summary
    with blaming(run.path):
        scores, partial = _scores(run), list[str]()
        if s.get("task") == GRAPH_EMBEDDING.name:
            scores.pop(START, None)  # round 0 counts only if all graphs were evaluated
            more, partial = embedding_scores(run)
            scores |= more
        spent = ((s.get("privacy") or {}).get("per_client") or {}).values()
        epsilons = [float(c.get("edge-epsilon", 0)) for c in spent]
        commit = str(s.get("git_commit") or "")
        clients = {rule: run.per_client(rule) for rule in RULES}
        clients |= {f"{rule}:{m}": run.per_client(rule, m) for rule, m in _beside(run)}
        result = Result(
            row=row,
            dataset=run.dataset,
            seed=run.seed,
            split_seed=int(s["split_seed"]),
            split_hash=str(s["split_hash"])[:12],
            rounds=int(s.get("rounds") or 0),
            metric=str(s.get("metric") or ""),
            edge_epsilon=max(epsilons, default=0.0),
            weights=str(s.get("weights_sha256") or "")[:12],
            commit=commit[:12] + "+" * commit.endswith(DIRTY),
            wall_s=round(float(s.get("wall_s") or 0.0), 1),
            data=hash_data(run.data, int(s["num_clients"])),
            inert=_inert(run),
            scores=scores,
            clients={k: v for k, v in clients.items() if per_client and v},
        )
        return result, partial


def at_metric(result: Result, metric: str) -> Result:
    """Return the result with another metric's scores in place of the headline's.

    Raises
    ------
    DataError
        The run states no such metric.
    """
    if metric == result.metric:
        return result
    tail = f":{metric}"
    found = {
        measure.removesuffix(tail): score
        for measure, score in result.scores.items()
        if measure.endswith(tail)
    }
    if not set(RULES) & set(found):
        known = {m.partition(":")[2] for m in result.scores if ":" in m}
        raise DataError(
            f"{result.row} on {result.dataset}, seed {result.seed}: the run states no"
            f" {metric}, but {', '.join([result.metric, *sorted(known)])}; take one of"
            " these, or run it again with this version"
        )
    kept = {k: v for k, v in result.scores.items() if k in ("clusters", "ARI")}
    of_metric = {k: of for k, of in result.clients.items() if k.endswith(tail)}
    clients = {k.removesuffix(tail): of for k, of in of_metric.items()}
    return replace(result, metric=metric, scores={**found, **kept}, clients=clients)


def hash_data(data: Mapping[str, str], num_clients: int) -> str:
    """Hash the clients' hashes, 12 digits; "" if not every client has one."""
    if len(data) < num_clients:
        return ""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]


def columns(results: Sequence[Result]) -> list[str]:
    """List all measures of the results: rules, then the rest by name and round."""
    known = {measure for r in results for measure in r.scores}
    first = [m for m in (*RULES, "validation", START) if m in known]
    return first + sorted(known - set(first), key=_by_number)


def _by_number(measure: str) -> list[str | int]:
    """Sort key in which ``round-2`` precedes ``round-10``."""
    parts = re.split(r"(\d+)", measure)
    return [int(part) if part.isdigit() else part for part in parts]


def _scores(run: Run) -> dict[str, float]:
    s = run.summary
    held_out = s.get("held_out_clients") or {}
    found: dict[str, Any] = {rule: (s.get(rule) or {}).get("mean") for rule in RULES}
    found |= {
        "validation": (s.get("best_val") or {}).get("validation"),
        "clusters": s.get("num_clusters"),
        "ARI": s.get("adjusted_rand_index"),
        HELD_OUT: held_out.get("mean"),
        ON_ALL: (s.get("on_all_clients") or {}).get("mean"),
        **{f"{HELD_OUT}:{m}": v for m, v in (held_out.get("also") or {}).items()},
        **{f"{rule}:{m}": s[rule]["also"][m] for rule, m in _beside(run)},
        **_start(run),
    }
    return {name: float(v) for name, v in found.items() if v is not None}


def _inert(run: Run) -> str:
    """Read why a run was inert, of an older one from its number of clusters."""
    row = METHODS.get(run.method)
    is_unsplit = run.summary.get("num_clusters") == 1
    unsplit = load_class(row.strategy).UNSPLIT if row and is_unsplit else ""
    return str(run.summary.get("inert", unsplit) or "")


def _beside(run: Run) -> list[tuple[str, str]]:
    """Rules and the metrics that they state beside the headline's."""
    return [
        (rule, metric)
        for rule in RULES
        for metric in (run.summary.get(rule) or {}).get("also") or {}
    ]


def _start(run: Run) -> dict[str, float]:
    """Means over clients of the scores of round 0, which only ``rounds.csv`` has."""
    wanted = [str(run.summary.get("split", "test")), "post_aggregation"]
    names = {m: f"{START}:{m}" for _, m in _beside(run)}
    names[str(run.summary.get("metric"))] = START
    found: dict[str, list[float]] = {}
    for number, _, _, _, metric, value, _ in read_rows(run.path / ROUNDS, wanted):
        if int(number) > 1:  # a round's rows come with those of the next at the latest
            break
        if number == "0" and metric in names:
            found.setdefault(names[metric], []).append(float(value))
    return {name: statistics.fmean(scores) for name, scores in found.items()}
