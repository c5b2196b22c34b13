"""The CSV file of results, which outlives the folders of runs.

Columns are the fields of :class:`Result`, one column per measure, and a column
``<rule> per client`` if a study needs single clients. An empty cell or ``nan`` is a
measure that the run does not have.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.files import replacing

from .results import RULES, Result, columns

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
