"""A run as a line of a table: its row, seeds and scores, kept in a CSV file.

Columns are the fields of :class:`Result`, one column per measure, and a column
``<rule> per client`` if a study needs single clients. An empty cell or ``nan`` is a
measure that the run does not have.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedgraph_flwr.core.embedding_scores import METRICS as EMBEDDING_METRICS
from fedgraph_flwr.core.embedding_scores import TRANSFORMS
from fedgraph_flwr.core.errors import DataError, FedGraphError
from fedgraph_flwr.core.files import replacing
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING, POOLED, TASKS
from fedgraph_flwr.registry import METHODS, load_class
from fedgraph_flwr.results.provenance import DIRTY
from fedgraph_flwr.results.reader import ROUNDS, blaming, read_rows
from fedgraph_flwr.results.selection import PROTOCOLS, Table

from .runs import Found, Run, row_name

HEADLINE = GRAPH_EMBEDDING.metric
CLUSTERS = tuple(f"{metric}-{t}" for metric in EMBEDDING_METRICS for t in TRANSFORMS)
# Plain names are those of the run's own transform.
PLAIN = tuple(metric for metric in EMBEDDING_METRICS if metric != HEADLINE)
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


_TYPES = {"int": int, "float": float, "str": str}
_FIELDS = {
    f.name: _TYPES[str(f.type)]
    for f in dataclasses.fields(Result)
    if str(f.type) in _TYPES
}
_OPTIONAL = {"data": "", "inert": "", "metric": ""}  # missing in older files
_PER_CLIENT = " per client"
DIGITS = 6  # after the point


def read(path: Path) -> list[Result]:
    """Read a file that :func:`write` wrote.

    Raises
    ------
    FedGraphError
        The file is missing or has another form.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [_result({**_OPTIONAL, **row}) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise FedGraphError(
            f"{path} is not a file of results ({error!r}); expected a CSV with columns"
            f" {', '.join(_FIELDS)} and measures, as --csv writes it"
        ) from error


def write(path: Path, results: Iterable[Result]) -> None:
    """Write results as CSV, ordered by data set, row and seeds.

    Raises
    ------
    StorageError
        It cannot be written; the file is as it was.
    """
    ordered = sorted(results, key=lambda r: (r.dataset, *r.key))
    measures = columns(ordered)
    of_clients = [m for m in RULES if any(m in r.clients for r in ordered)]
    with (
        replacing(path) as partial,
        partial.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_FIELDS, *measures, *(m + _PER_CLIENT for m in of_clients)])
        for result in ordered:
            scores = (result.scores.get(measure) for measure in measures)
            clients = (result.clients.get(measure, {}) for measure in of_clients)
            row = [getattr(result, name) for name in _FIELDS]
            row += ["" if v is None else f"{v:.{DIGITS}f}" for v in scores]
            for of in clients:
                row.append(" ".join(f"{c}={v:.{DIGITS}f}" for c, v in of.items()))
            writer.writerow(row)


def merge(old: Iterable[Result], new: Iterable[Result]) -> list[Result]:
    """Join results; a new one replaces the old one of the same row, seeds and split.

    Raises
    ------
    FedGraphError
        Results on one split are of different data; two new results are of one row,
        seed and split.
    """
    new = list(new)
    twice = [key for key, count in Counter(r.key for r in new).items() if count > 1]
    if twice:
        row, seed, split_seed, _ = twice[0]
        raise FedGraphError(
            f"row {row!r} has seed {seed} on split seed {split_seed} twice, which must"
            " count once; leave one of the folders out"
        )
    results = [*old, *new]
    known: dict[tuple[str, int, str], Result] = {}
    for r in results:
        place = (r.dataset, r.split_seed, r.split_hash)
        first = known.setdefault(place, r)
        if r.data and not first.data:
            known[place] = r
        elif r.data and r.data != first.data:
            raise FedGraphError(
                f"results of {r.dataset} on split {r.split_hash} are of different data:"
                f" {first.row} of {first.data}, {r.row} of {r.data}; give only folders"
                " of runs on one of them"
            )
    return list({r.key: r for r in results}.values())


def _result(row: Mapping[str, str]) -> Result:
    if None in row or None in row.values():
        raise ValueError("a line has more or fewer cells than the heading")
    fields = {name: kind(row[name]) for name, kind in _FIELDS.items()}
    scores, clients = dict[str, float](), dict[str, dict[int, float]]()
    for name, cell in row.items():
        if name in _FIELDS or cell in ("", "nan"):
            continue
        if name.endswith(_PER_CLIENT):
            clients[name.removesuffix(_PER_CLIENT)] = _clients(cell)
        else:
            scores[name] = float(cell)
    return Result(**fields, scores=scores, clients=clients)


def _clients(cell: str) -> dict[int, float]:
    pairs = (entry.split("=") for entry in cell.split())
    return {int(client): float(value) for client, value in pairs}
