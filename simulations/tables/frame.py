"""Runs as rows of one table: read from folders and CSV files, joined, compared.

Columns of a table are ``FIELDS``, a column for each measure (NaN if a run does not
have it), and columns ``<measure> per client`` of mappings, client -> score, if single
clients are known. A measure is a rule, ``start`` (the score before training),
``validation`` (the score by which ``best_val`` chose), ``clusters``, ``ARI``,
``held-out clients``, ``on all clients``, ``best_round``, ``<rule>:<metric>`` and
``start:<metric>`` of metrics beside the headline's, ``round-<t>`` of embeddings, or
shares of a trigger (``attack-success``).
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from fedgraph_flwr.core.embedding_scores import METRICS as EMBEDDING_METRICS
from fedgraph_flwr.core.embedding_scores import TRANSFORMS
from fedgraph_flwr.core.errors import DataError, FedGraphError
from fedgraph_flwr.core.files import replacing
from fedgraph_flwr.core.tasks import GRAPH_EMBEDDING, TASKS
from fedgraph_flwr.registry import METHODS, load_class
from fedgraph_flwr.results.provenance import DIRTY
from fedgraph_flwr.results.reader import ROUNDS, blaming, read_rows, read_series
from fedgraph_flwr.results.selection import PROTOCOLS, RECEIVED

from .runs import Found, Run, row_name
from .stats import Difference, split_means

Table: TypeAlias = "pd.DataFrame"
Row: TypeAlias = dict[str, Any]  # one line of a table, by column

FIELDS: Mapping[str, type] = {
    "row": str,  # a preset and the settings that differ from it, or a control
    "dataset": str,
    "seed": int,
    "split_seed": int,
    "split_hash": str,  # first 12 digits, as of all hashes and commits
    "rounds": int,
    "metric": str,  # of the headline; "" in older files
    "edge_epsilon": float,  # most that a client's ledger counts for edges; 0: no noise
    "weights": str,
    "commit": str,  # with "+" if files differed from the commit
    "wall_s": float,
    "data": str,  # hash over all clients' files; "" if a client sends none
    "inert": str,  # why the run did nothing of the method's own; "" if it did
}
_OPTIONAL = ("data", "inert", "metric")  # missing in older files
PAIR = ["seed", "split_seed", "split_hash"]  # by which runs are compared
KEY = ["row", *PAIR]  # no two lines of a table have an equal one
PER_CLIENT = " per client"
DIGITS = 6  # of files, after the point

RULES = tuple(PROTOCOLS)
START = "start"
ROUND = "round-"
# Each client's best test score of all rounds: for every row what snapshots choose from.
BEST_ROUND = "best_round"
HELD_OUT, ON_ALL = "held-out clients", "on all clients"
METRICS = tuple(dict.fromkeys(m for t in TASKS for m in (t.metric, *t.also)))
ERRORS = frozenset(
    m for t in TASKS if not t.larger_is_better for m in (t.metric, *t.also)
)
HEADLINE = GRAPH_EMBEDDING.metric
PROBES = ("probe-accuracy", "svm-accuracy")
# Metrics of embeddings: those of the run's own transform, those by transform, probes.
OF_EMBEDDINGS = (
    *(metric for metric in EMBEDDING_METRICS if metric != HEADLINE),
    *(f"{metric}-{t}" for metric in EMBEDDING_METRICS for t in TRANSFORMS),
    *PROBES,
)
_ROUNDS_COLUMNS = ("round", "client", "split", "point", "metric", "value", "size")


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Make a table of rows; fields that a row lacks are 0 or empty."""
    empty = {name: kind() for name, kind in FIELDS.items()}
    found = pd.DataFrame([{**empty, **row} for row in rows])
    return found.reindex(columns=[*dict.fromkeys([*FIELDS, *found])]).astype(FIELDS)


def records(found: Table) -> list[Row]:
    """Rows of a table as mappings, without the measures that a run does not have."""
    return [
        {k: v for k, v in row.items() if isinstance(v, dict) or v == v}
        for row in found.to_dict("records")
    ]


def by_row(found: Table) -> dict[str, Table]:
    """Share a table out by its column ``row``."""
    return dict(iter(found.groupby("row", sort=False)))


def measures(found: Table) -> list[str]:
    """List all measures of a table: rules, then the rest by name and round."""
    known = {
        name
        for name in found
        if not (name in FIELDS or name.endswith(PER_CLIENT))
        and found[name].notna().any()
    }
    first = [m for m in (*RULES, "validation", START) if m in known]
    return first + sorted(known - set(first), key=_by_number)


def _by_number(measure: str) -> list[str | int]:
    """Sort key in which ``round-2`` precedes ``round-10``."""
    parts = re.split(r"(\d+)", measure)
    return [int(part) if part.isdigit() else part for part in parts]


def read_results(found: Found, *, per_client: bool) -> tuple[Table, list[str]]:
    """Read the results of runs.

    Returns
    -------
    results : Table
    problems : list of str
        The reason for every run, and every round, that cannot be used.
    """
    lines, problems = [], list(found.left_out)
    for run in found.runs:
        try:
            with blaming(run.path):
                name = row_name(run.method, run.dataset, run.settings)
            row, partial = from_run(run, name, per_client=per_client)
        except DataError as error:
            problems.append(str(error))
            continue
        lines.append((run, row))
        problems += partial
    rows, partial = join_folds(lines)
    return table(rows), problems + partial


def join_folds(lines: Iterable[tuple[Run, Row]]) -> tuple[list[Row], list[str]]:
    """Make one line of the runs of a cross-validation.

    Each score is the mean of its folds' scores: folds share training data, and are no
    trials of their own.

    Returns
    -------
    rows : list of dict
    problems : list of str
        Cross-validations that lack a fold, which have no line.
    """
    rows, problems = list[Row](), list[str]()
    parts: dict[tuple[Any, ...], dict[int, Row]] = {}
    for run, line in lines:
        fold, folds = run.fold
        if folds == 1:
            rows.append(line)
        else:
            key = line["dataset"], line["row"], line["seed"], line["split_seed"], folds
            parts.setdefault(key, {})[fold] = line
    for (dataset, row, seed, _, folds), found in parts.items():
        missing = [str(k) for k in range(folds) if k not in found]
        if missing:
            problems.append(
                f"{row} on {dataset}, seed {seed}: of {folds} folds there is no"
                f" completed run of fold {', '.join(missing)}, so that none is used"
            )
        else:
            rows.append(joined := _of_folds([found[k] for k in range(folds)]))
            every = {name for line in found.values() for name in line}
            gone = {n.partition(":")[2] for n in every - {*joined}} - {""}
            if lost := {n.removesuffix(PER_CLIENT) for n in gone}:
                problems.append(
                    f"{', '.join(sorted(lost))} of {row} on {dataset}, seed {seed}: a"
                    " fold has none, as its test items are of one class; lower folds"
                )
    return rows, problems


def _of_folds(lines: list[Row]) -> Row:
    """Join the lines of all folds, in their order."""
    found = dict(lines[0])
    for name in lines[0]:
        values = [line[name] for line in lines if name in line]
        if name in ("split_hash", "weights"):
            found[name] = hashlib.sha256("".join(values).encode()).hexdigest()[:12]
        elif name in ("edge_epsilon", "wall_s"):
            found[name] = sum(values)
        elif name == "rounds":
            found[name] = max(values)
        elif name.endswith(PER_CLIENT):
            clients = set(values[0]).intersection(*values)
            found[name] = {c: statistics.fmean(v[c] for v in values) for c in clients}
        elif name not in FIELDS and len(values) == len(lines):
            found[name] = statistics.fmean(values)
        elif name not in FIELDS:
            del found[name]
        elif len(set(values)) > 1:
            found[name] = " ".join(map(str, sorted(set(values))))
    return found


def from_run(run: Run, row: str, *, per_client: bool) -> tuple[Row, list[str]]:
    """Read one run as a line of a table, named ``row``.

    Returns
    -------
    line : dict
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
        rows = {rule: s.get(rule) or {} for rule in RULES}
        beside = {
            f"{r}:{m}": v for r in RULES for m, v in rows[r].get("also", {}).items()
        }
        held_out = s.get("held_out_clients") or {}
        scores: dict[str, Any] = {
            **{rule: of.get("mean") for rule, of in rows.items()},
            "validation": rows["best_val"].get("validation"),
            "clusters": s.get("num_clusters"),
            "ARI": s.get("adjusted_rand_index"),
            HELD_OUT: held_out.get("mean"),
            ON_ALL: (s.get("on_all_clients") or {}).get("mean"),
            **{f"{HELD_OUT}:{m}": v for m, v in (held_out.get("also") or {}).items()},
            **beside,
            **(s.get("attacked") or {}).get("shares", {}),
        }
        scores = {name: float(v) for name, v in scores.items() if v is not None}
        partial: list[str] = []
        if s.get("task") == GRAPH_EMBEDDING.name:
            more, partial = embedding_scores(run)
        else:
            more = _start(run, {name.partition(":")[2] for name in beside})
        best = {}
        if rows["best_snapshot"]:
            of_test = {"split": s.get("split", "test"), "metric": str(s.get("metric"))}
            series = read_series(run.path, point=RECEIVED, **of_test)
            best = series.loc[1:].max().to_dict()
            more[BEST_ROUND] = float(np.mean([*best.values()] or [np.nan]))
        spent = ((s.get("privacy") or {}).get("per_client") or {}).values()
        commit = str(s.get("git_commit") or "")
        fields = {
            "row": row,
            "dataset": run.dataset,
            "seed": run.seed,
            "split_seed": int(s["split_seed"]),
            "split_hash": str(s["split_hash"])[:12],
            "rounds": int(s.get("rounds") or 0),
            "metric": str(s.get("metric") or ""),
            "edge_epsilon": max(
                (float(c.get("edge-epsilon", 0)) for c in spent), default=0
            ),
            "weights": str(s.get("weights_sha256") or "")[:12],
            "commit": commit[:12] + "+" * commit.endswith(DIRTY),
            "wall_s": round(float(s.get("wall_s") or 0.0), 1),
            "data": hash_data(run.data, int(s["num_clients"])),
            "inert": _inert(run),
        }
        clients = {name: run.per_client(*name.split(":")) for name in (*RULES, *beside)}
        clients[BEST_ROUND] = best
        known = {k + PER_CLIENT: v for k, v in clients.items() if per_client and v}
        return {**fields, **scores, **more, **known}, partial


def hash_data(data: Mapping[str, str], num_clients: int) -> str:
    """Hash the clients' hashes, 12 digits; "" if not every client has one."""
    if len(data) < num_clients:
        return ""
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]


def embedding_scores(run: Run) -> tuple[dict[str, float], list[str]]:
    """Read the scores of clusters and probes; means over clients if they are apart.

    Returns
    -------
    scores : dict
        ``final:<metric>`` and ``start:<metric>`` (round 0) for ``OF_EMBEDDINGS``;
        ``start`` and ``round-<t>``: the headline in each evaluated round.
    partial : list of str
        Rounds left out because only a part of the graphs was evaluated.

    Raises
    ------
    DataError
        The last round was not evaluated or only in part; a score is not finite.
    """
    try:
        lines = [*read_rows(run.path / ROUNDS, ["all", "post_aggregation"])]
        kinds = {"round": int, "client": int, "value": float, "size": int}
        found = pd.DataFrame(lines, columns=_ROUNDS_COLUMNS).astype(kinds)
        last = int(run.summary["rounds"])
        if not np.isfinite(found["value"]).all():
            raise ValueError("a score is not finite")
        if last not in {*found[found["metric"] == HEADLINE]["round"]}:
            raise ValueError(f"no {HEADLINE} after the last round, {last}")
        sizes = (
            found.drop_duplicates(["round", "client"]).groupby("round")["size"].sum()
        )
        most = sizes.max()
        if sizes[last] < most:
            raise ValueError(
                f"after the last round, {last}, {sizes[last]} of {most} graphs were"
                " evaluated: a client did not answer"
            )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise DataError(f"{run.path}: rounds.csv is not usable: {error}") from error
    parts = sizes[sizes < most].sort_index()
    whole = found[~found["round"].isin(parts.index)]
    means = whole.groupby(["round", "metric"])["value"].apply(statistics.fmean)
    scores = {}
    for (at, metric), mean in means.items():
        if metric == HEADLINE:
            scores[f"{ROUND}{at}" if at else START] = mean
        elif metric in OF_EMBEDDINGS:
            scores |= {f"final:{metric}": mean} if at == last else {}
            scores |= {f"{START}:{metric}": mean} if at == 0 else {}
    words = "{}, round {}: {} of {} graphs evaluated"
    return scores, [words.format(run.path, at, n, most) for at, n in parts.items()]


def _inert(run: Run) -> str:
    """Read why a run was inert, of an older one from its number of clusters."""
    row = METHODS.get(run.method)
    is_unsplit = run.summary.get("num_clusters") == 1
    unsplit = load_class(row.strategy).UNSPLIT if row and is_unsplit else ""
    return str(run.summary.get("inert", unsplit) or "")


def _start(run: Run, beside: Iterable[str]) -> dict[str, float]:
    """Means over clients of the scores of round 0, which only ``rounds.csv`` has."""
    wanted = [str(run.summary.get("split", "test")), "post_aggregation"]
    names = {m: f"{START}:{m}" for m in beside}
    names[str(run.summary.get("metric"))] = START
    found: dict[str, list[float]] = {}
    for number, _, _, _, metric, value, _ in read_rows(run.path / ROUNDS, wanted):
        if int(number) > 1:  # a round's rows come with those of the next at the latest
            break
        if number == "0" and metric in names:
            found.setdefault(names[metric], []).append(float(value))
    return {name: statistics.fmean(scores) for name, scores in found.items()}


def read(path: Path) -> Table:
    """Read a file that :func:`write` wrote; a measure that is empty or nan is missing.

    Raises
    ------
    FedGraphError
        The file is missing or has another form.
    """
    try:
        found = pd.read_csv(path, dtype=object, keep_default_na=False)
        if not isinstance(found.index, pd.RangeIndex):
            raise ValueError("a line has more cells than the heading")
        for name in found:
            if name.endswith(PER_CLIENT):
                found[name] = found[name].map(_clients)
            elif name not in FIELDS:
                found[name] = found[name].replace("", "nan").astype(float)
        return found.assign(**{k: "" for k in _OPTIONAL if k not in found}).astype(
            FIELDS
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise FedGraphError(
            f"{path} is not a file of results ({error!r}); expected a CSV with columns"
            f" {', '.join(FIELDS)} and measures, as --csv writes it"
        ) from error


def write(path: Path, found: Table) -> None:
    """Write a table as CSV, ordered by data set, row and seeds.

    Raises
    ------
    StorageError
        It cannot be written; the file is as it was.
    """
    kept = (*RULES, BEST_ROUND)
    clients = [name for rule in kept if (name := rule + PER_CLIENT) in found]
    ordered = found.sort_values(["dataset", *KEY])
    text = ordered[list(FIELDS)].copy()
    for name in measures(found):
        text[name] = [f"{v:.{DIGITS}f}" if v == v else "" for v in ordered[name]]
    for name in clients:
        text[name] = [
            " ".join(f"{c}={v:.{DIGITS}f}" for c, v in of.items()) if of == of else ""
            for of in ordered[name]
        ]
    with replacing(path) as partial:
        text.to_csv(partial, index=False, lineterminator="\n")


def merge(old: Table, new: Table) -> Table:
    """Join tables; a new line replaces the old one of the same row, seeds and split.

    Raises
    ------
    FedGraphError
        Results on one split are of different data; two new results are of one row,
        seed and split.
    """
    both = pd.concat([old, new], ignore_index=True)
    known = both[both["data"] != ""]
    check_alike(known, ["dataset", "split_seed", "split_hash"], "data")
    for r in records(new[new.duplicated(KEY)])[:1]:
        raise FedGraphError(
            f"row {r['row']!r} has seed {r['seed']} on split seed {r['split_seed']}"
            " twice, which must count once; leave one of the folders out"
        )
    return both.drop_duplicates(KEY, keep="last", ignore_index=True)


def check_alike(results: Table, place: list[str], column: str) -> None:
    """Refuse results of one place that differ in a column, which none of them may.

    Raises
    ------
    FedGraphError
        They differ.
    """
    for _, of_place in results.groupby(place):
        first, *others = records(of_place.drop_duplicates(column))
        for r in others:
            at = ", ".join(f"{name} {r[name]}" for name in place)
            raise FedGraphError(
                f"results of {at} are of different {column}: {first['row']} of"
                f" {first[column]}, {r['row']} of {r[column]}; give only runs of one of"
                " them"
            )


def _clients(cell: str) -> Any:
    """Read ``"0=0.25 3=0.5"``; NaN if no client is known."""
    pairs = (entry.split("=") for entry in cell.split())
    return {int(client): float(value) for client, value in pairs} or float("nan")


def pair(ours: Table, theirs: Table, measure: str) -> Difference:
    """Subtract ``theirs`` from ``ours`` for runs of equal seed, split seed and split.

    Runs that know their clients' scores are compared over the clients that both have.
    """
    clients = measure + PER_CLIENT
    columns = [*PAIR, "metric", measure, clients]
    a, b = (side.reindex(columns=columns) for side in (ours, theirs))
    both = a.merge(b, on=PAIR, suffixes=("", "'")).sort_values(["split_seed", "seed"])
    values, splits, gains = [], [], []
    for r in both.to_dict("records"):
        apart = _apart(r[clients], r[clients + "'"])
        value = r[measure] - r[measure + "'"]
        if apart is not None:
            value = statistics.fmean(apart.values()) if apart else np.nan
        if value == value:
            sign = -1 if r["metric"] in ERRORS else 1
            values.append(100 * value)
            splits.append(str(r["split_hash"]))
            gains.append({c: sign * v for c, v in (apart or {}).items()})
    of_all = pd.DataFrame(gains).dropna(axis=1)  # clients that every pair has
    means = {
        int(c): 100 * statistics.fmean(split_means(of_all[c], splits))
        for c in sorted(of_all)
    }
    return Difference(tuple(values), tuple(splits), tuple(means.values()), tuple(means))


def _apart(ours: Any, theirs: Any) -> dict[int, float] | None:
    """Subtract two runs' scores client by client; None if one of them knows none."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return None
    return {c: ours[c] - theirs[c] for c in sorted(ours.keys() & theirs.keys())}


def from_start(results: Table, measure: str) -> Difference | None:
    """Subtract the score before training; None if no result knows it."""
    metric = measure.partition(":")[2]
    start = f"{START}:{metric}" if metric else START
    known = results.reindex(columns=[*KEY, measure, start]).dropna()
    if known.empty:
        return None
    known = known.sort_values(["split_seed", "seed"])
    values = 100 * (known[measure] - known[start])
    return Difference(tuple(values), tuple(known["split_hash"]))
