"""Tables of a study: ``python -m simulations.study fgcl DIR ... [--csv FILE]``.

A study (``studies/<name>.toml``) lists tables: which presets are their rows, which
pairs of rows are subtracted, what the paper reports. Runs are paired by seed and split
seed. With ``--csv`` results are added to a file, from which the same tables are printed
when the runs' folders are gone.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape

from fedgraph_flwr.errors import FedGraphError

from .compare_runs import check_same_data, find_runs
from .markup import consoles, pipe_table, tell_unused
from .study_file import FOLDER, OWN_START, Study, StudyTable, load_study
from .study_runs import RULES, Result, from_run, merge, read, write
from .study_stats import Paired, from_start, pair

NONE = "-"
_INTERVALS = {
    "t": "Student's t",
    "split-t": "Student's t over the means of splits, as pairs on one split share it",
    "corrected-t": "Student's t, corrected for what splits of one data set share",
    "bootstrap": "percentiles of 10000 resamples",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code (2: nothing to tell, or refused)."""
    options = _parser().parse_args(arguments)
    out, err = consoles()
    try:
        study = load_study(options.study)
        results: list[Result] = []
        if options.csv is not None and options.csv.exists():
            results = read(options.csv)
        if options.folders:
            found = find_runs(options.folders)
            tell_unused(found.left_out, err)
            check_same_data(found.runs)
            results = merge(results, [from_run(run) for run in found.runs])
        if not results:
            raise FedGraphError("no results: give folders of runs, or --csv FILE")
        if options.csv is not None and options.folders:
            write(options.csv, results)
        text, unused = report(study, results)
        tell_unused([f"{row}: in no table of {study.name}" for row in unused], err)
        out.print(text, soft_wrap=True, markup=False, highlight=False)
    except FedGraphError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        return 2
    return 0


def report(study: Study, results: Sequence[Result]) -> tuple[str, list[str]]:
    """Word all tables of a study, as GitHub tables.

    Returns
    -------
    (text, unused)
        Tables without any result are left out; ``unused`` are rows in no table.
    """
    by_row: dict[str, list[Result]] = {}
    for result in results:
        by_row.setdefault(result.row, []).append(result)
    parts = [
        "\n".join(_table(study, table, by_row))
        for table in study.tables
        if any(row in by_row for row in table.rows)
    ]
    used = {row for table in study.tables for row in table.rows}
    return "\n\n".join(parts), sorted(set(by_row) - used)


def _table(
    study: Study, table: StudyTable, by_row: Mapping[str, list[Result]]
) -> list[str]:
    rows = [row for row in table.rows if row in by_row]
    with_start = OWN_START in {b for _, b in table.differences}
    found = [_cells(study, row, by_row[row], with_start=with_start) for row in rows]
    lines = [f"### {table.title}", "", *_used_columns(found)]
    missing = [row for row in table.rows if row not in by_row]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    differences = [
        (f"{a} - {b}", paired, _published(study, a, b))
        for a, b in table.differences
        if (paired := _pair(study, by_row, a, b)) is not None
    ]
    if differences:
        lines += ["", *_difference_lines(study, differences)]
    return [*lines, "", _protocol(study, [r for row in rows for r in by_row[row]])]


def _pair(
    study: Study, by_row: Mapping[str, list[Result]], a: str, b: str
) -> Paired | None:
    """Subtract row ``b``, or the start of ``a``; None where there is no such row."""
    if a not in by_row or b not in (*by_row, OWN_START):
        return None
    if b != OWN_START:
        return pair(by_row[a], by_row[b], study.rule)
    return from_start(by_row[a], study.rule)


def _cells(
    study: Study, row: str, results: Sequence[Result], *, with_start: bool
) -> list[tuple[str, str]]:
    """Headings and cells of a line."""
    target = study.targets.get(row)
    epsilons = sorted({result.edge_epsilon for result in results})
    rules = [study.rule, *(rule for rule in RULES if rule != study.rule)]
    return [
        ("row", row),
        ("pairs", str(len(results))),
        ("rounds", _span([result.rounds for result in results])),
        ("epsilon", " or ".join(f"{e:g}" if e else NONE for e in epsilons)),
        *((rule, _score([getattr(r, rule) for r in results])) for rule in rules),
        (
            OWN_START,
            _score([r.start for r in results]) if with_start else NONE,
        ),
        ("validation", _score([result.validation for result in results])),
        ("paper", NONE if target is None else f"{target:.4f}"),
    ]


def _score(values: Sequence[float]) -> str:
    if any(map(math.isnan, values)):
        return NONE
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def _difference_lines(
    study: Study,
    differences: Sequence[tuple[str, Paired, float | None]],
) -> list[str]:
    cells = []
    for name, found, published in differences:
        low, high = found.interval(study.interval)
        interval = NONE if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"
        cells.append(
            [
                ("difference", name),
                ("pairs", str(found.num_pairs)),
                (
                    "points [95 %]",
                    f"{found.mean:+.2f} {interval}" if found.num_pairs else NONE,
                ),
                (
                    "by split",
                    " ".join(f"{mean:+.1f}" for mean in found.by_split()) or NONE,
                ),
                ("paper", NONE if published is None else f"{published:+.2f}"),
            ]
        )
    return _used_columns(cells)


def _used_columns(lines: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Table of lines of (heading, cell), without columns in which nothing stands."""
    used = {name for cells in lines for name, cell in cells if cell != NONE}
    headings = [name for name, _ in lines[0] if name in used]
    return pipe_table(
        headings,
        [k == 0 for k in range(len(headings))],
        [[cell for name, cell in cells if name in used] for cells in lines],
    )


def _published(study: Study, a: str, b: str) -> float | None:
    ours, theirs = study.targets.get(a), study.targets.get(b)
    return None if ours is None or theirs is None else 100 * (ours - theirs)


def _protocol(study: Study, results: Sequence[Result]) -> str:
    pairs = sorted({(r.seed, r.split_seed, r.split_hash) for r in results})
    commits = sorted({r.commit for r in results})
    words = ", ".join(f"{seed}/{split}: {h}" for seed, split, h in pairs)
    return (
        f"Protocol: rule {study.rule}; mean ± std (ddof 1) over pairs of run seed and"
        f" split seed, with the split's hash: {words}. Intervals over pairs:"
        f" {_INTERVALS[study.interval]}. Commits {', '.join(commits)}. Paper:"
        f" {study.paper}."
    )


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.study",
        description="Tables of a study, differences paired by seeds.",
    )
    names = sorted(path.stem for path in FOLDER.glob("*.toml"))
    parser.add_argument("study", choices=names, help="name of the study")
    parser.add_argument(
        "folders", metavar="DIR", nargs="*", type=Path, help="folders with runs"
    )
    parser.add_argument(
        "--csv", type=Path, help="file of results to read, and to add these runs to"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
