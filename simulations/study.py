"""Tables of a study: ``python -m simulations.study fgcl [DIR ...] [--csv FILE]``.

A study (``studies/<name>.toml``) lists tables: which presets are their rows, which
pairs of rows are subtracted, what the paper reports. Runs are paired by seed and split
seed. ``--csv`` adds the results to a file, from which the same tables are made when the
runs' folders are gone. ``--page`` writes them as a page, ``--figures`` draws them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedgraph_flwr.command import command
from fedgraph_flwr.errors import ConfigError, FedGraphError, unknown_name
from fedgraph_flwr.files import write_text

from .markup import consoles, markdown, paragraph, tell_unused
from .tables import file
from .tables.controls import control_results
from .tables.figures import draw_study
from .tables.groups import check_same_data
from .tables.report import Rows, by_row, make_reports, rule_words
from .tables.results import RULES, Result, columns, read_results
from .tables.runs import find_runs
from .tables.studies import FOLDER, Study, StudyTable, load_study


@command
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code (2: nothing to show, or refused)."""
    options = _parser().parse_intermixed_args(arguments)
    if options.rule and options.page:
        raise ConfigError("--page has the rule of the study's file; leave --rule out")
    out, err = consoles()
    study = load_study(options.study)
    results, problems = collect(study, options)
    tell_unused(problems, err)
    if options.csv is not None and (options.folders or options.controls):
        file.write(options.csv, results)
        results = file.read(options.csv)  # of as many digits as a later reader sees
    study = replace(study, rule=_check_rule(options.rule or study.rule, results))
    found = by_row(results)
    if options.page is None:
        tell_unused(
            [f"{r}: in no table of {study.name}" for r in rest(study, found)], err
        )
        text = "\n\n".join(
            markdown(r.title, r.parts) for r in make_reports(study, found)
        )
        out.out(text)
    else:
        text = page(study, found, options.page, options.csv)
        write_text(options.page, text)
        err.out(f"written: {options.page}")
    if options.figures is not None:
        for path in draw_study(study, found, options.figures):
            err.out(f"drawn: {path}")
    return 0


def collect(
    study: Study, options: argparse.Namespace
) -> tuple[list[Result], list[str]]:
    """Gather results from the file, the folders and the controls.

    Returns
    -------
    results : list of Result
    problems : list of str
        The reason for everything that is not used.

    Raises
    ------
    FedGraphError
        There is no result, or results are of different data.
    """
    results: list[Result] = []
    problems: list[str] = []
    if options.csv is not None and options.csv.exists():
        results = file.read(options.csv)
    if options.folders:
        found = find_runs(options.folders)
        check_same_data(found.runs)
        new, problems = read_results(found, per_client=study.spread == "clients")
        results = file.merge(results, new)
    if options.controls:
        results = file.merge(results, control_results(results))
    if not results:
        words = "".join(f"\n  {problem}" for problem in problems)
        raise FedGraphError(f"no results: give folders of runs, or --csv FILE{words}")
    return results, problems


def _check_rule(rule: str, results: Sequence[Result]) -> str:
    known = columns(results)
    if rule not in known:
        raise FedGraphError(
            unknown_name("measure", rule, known, "Choose one with --rule.")
        )
    return rule


def page(study: Study, found: Rows, place: Path, csv: Path | None) -> str:
    """Write all tables of a study as a page for ``place``, made from ``csv``.

    Results in no table of the study stand in a table of their own at the end.
    """
    tables = study.tables
    if others := rest(study, found):
        tables = (*tables, StudyTable(title="Other runs", rows=tuple(others)))
    reports = make_reports(replace(study, tables=tables), found)
    measures = columns([r for of_row in found.values() for r in of_row])
    name, given, source = study.name, "DIR", ""
    if csv is not None:
        given = f"--csv {csv.as_posix()}"
        link = Path(os.path.relpath(csv, place.parent)).as_posix()
        source = f" from [{csv.name}]({link})"
    head = [
        f"# Tables of runs: {name}",
        paragraph(
            f"Made by `python -m simulations.study {name} {given} --page"
            f" {place.as_posix()}`{source}; do not edit. What the tables say:"
            f" [results](../results-{name}.md)."
        ),
        paragraph(rule_words(rule for rule in RULES if rule in measures) + "."),
    ]
    return "\n\n".join([*head, *(markdown(r.title, r.parts) for r in reports)]) + "\n"


def rest(study: Study, found: Rows) -> list[str]:
    """Rows of the results that stand in no table."""
    return sorted(set(found) - {row for table in study.tables for row in table.rows})


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
    parser.add_argument(
        "--rule",
        metavar="MEASURE",
        help="measure of differences, a column of the file (default: the study's)",
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="add rows without training to results of embeddings (needs the data)",
    )
    parser.add_argument(
        "--page", type=Path, metavar="MD", help="write the tables to this page"
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="draw figures into this folder"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
