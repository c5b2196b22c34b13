"""``fedgraph study``: tables of a study.

A study (``studies/<name>.toml``) lists tables: which presets are their rows, which
pairs of rows are subtracted, what the paper reports. Runs are paired by seed and split
seed. ``--csv`` adds the results to a file, from which the same tables are made when the
runs' folders are gone. ``--page`` writes them as a page, ``--figures`` draws them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from fedgraph_flwr.core.errors import ConfigError, FedGraphError, unknown_name
from fedgraph_flwr.core.files import write_text
from fedgraph_flwr.view.style import GREY, PALETTE, bare, save

from .markup import consoles, markdown, paragraph, tell_unused
from .tables import frame
from .tables.captions import (
    Rows,
    chance_of,
    common_verdict,
    floor_of,
    is_draw,
    make_reports,
    rule_words,
    subtract,
)
from .tables.controls import control_results
from .tables.frame import RULES, Table, by_row, measures, read_results
from .tables.runs import find_runs
from .tables.stats import BELOW, ENOUGH_SPLITS, SHOWN, Difference
from .tables.studies import FOLDER, Study, StudyTable, load_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_STUDIES = click.Choice(sorted(path.stem for path in FOLDER.glob("*.toml")))
ROW_INCHES = 0.22
COLOURS = {SHOWN: PALETTE[2], BELOW: PALETTE[1]}
CAPTION = (
    "difference in points, mean and 95 % interval; coloured if n >="
    f" {ENOUGH_SPLITS} splits and the intervals of all measures exclude 0"
)
Entry = tuple[str, Difference, str]  # label, difference, verdict


def draw_study(study: Study, found: Rows, folder: Path) -> Path:
    """Draw ``<study>-differences.png``: a dot for the mean, a line for the interval.

    Raises
    ------
    FedGraphError
        No difference has runs on both sides.
    """
    from matplotlib.figure import Figure

    panels = [(panel, _entries(study, panel, found)) for panel in study.figure]
    panels = [(panel, entries) for panel, entries in panels if entries]
    if not panels:
        raise FedGraphError(
            f"nothing to draw: no difference of [[figure]] in studies/{study.name}.toml"
            " has runs on both sides"
        )
    sizes = [len(entries) for _, entries in panels]
    height = ROW_INCHES * sum(sizes) + 0.5 * len(panels) + 0.6
    figure = Figure(figsize=(8.4, height), dpi=150, layout="constrained")
    ratios = [n + 0.8 for n in sizes]
    grid = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, height_ratios=ratios
    )
    for axes, (panel, entries) in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, panel.title, entries, study)
    figure.supxlabel(CAPTION, fontsize=9)
    return save(figure, folder / f"{study.name}-differences.png")


def _entries(study: Study, panel: StudyTable, found: Rows) -> list[Entry]:
    """Differences of a panel that have a pair, with their labels."""
    entries = []
    for (a, b), label in zip(panel.differences, panel.labels, strict=True):
        difference = subtract(a, b, study.rule, found)
        if difference is not None and difference.num_pairs:
            sides = {a, b} & {*found}
            word = common_verdict(study, a, b, found, floor_of(study, sides, found))
            entries.append((label or f"{a} - {b}", difference, word))
    return entries


def _draw_panel(axes: Axes, title: str, entries: list[Entry], study: Study) -> None:
    """Draw a line for each difference, with its number of splits; the first on top."""
    for at, (_, difference, word) in enumerate(entries):
        color = COLOURS.get(word, GREY)
        interval = difference.interval(study.held_out)
        if not math.isnan(interval[0]):
            axes.plot(interval, [at, at], color=color, linewidth=1.6)
        axes.plot(difference.mean, at, "o", color=color, markersize=4.5)
    axes.axvline(0, color="0.35", linewidth=0.8)
    names = [f"{label} (n={found.num_splits})" for label, found, _ in entries]
    axes.set_yticks(range(len(names)), names, fontsize=8.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", color="0.93")
    axes.set_axisbelow(True)
    bare(axes)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", click_type=_STUDIES)],
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[DIR]...")] = None,
    *,
    csv: Annotated[
        Path | None, typer.Option(help="Results to read, and to add these runs to.")
    ] = None,
    rule: Annotated[
        str, typer.Option(metavar="MEASURE", help="Of differences: a column of CSV.")
    ] = "",
    controls: Annotated[
        bool,
        typer.Option("--controls", help="Add rows without training (needs the data)."),
    ] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="MD", help="Write the tables to this page.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw figures into this folder.")
    ] = None,
) -> int:
    """Make the tables of a study from folders of runs; differences paired by seeds."""
    if rule and page:
        raise ConfigError("--page has the rule of the study's file; leave --rule out")
    out, err = consoles()
    of = load_study(name)
    results, problems = collect(of, folders or [], csv, with_controls=controls)
    tell_unused(problems, err)
    if csv is not None and (folders or controls):
        frame.write(csv, results)
        results = frame.read(csv)  # of as many digits as a later reader sees
    of = replace(of, rule=rule or of.rule)
    if of.rule not in (known := measures(results)):
        cure = "Choose one with --rule."
        raise FedGraphError(unknown_name("measure", of.rule, known, cure))
    found = by_row(results)
    if page is None:
        tell_unused([f"{r}: in no table of {of.name}" for r in rest(of, found)], err)
        reports = make_reports(of, found)
        out.out("\n\n".join([*map(markdown, reports), chance_of(reports)]))
    else:
        write_text(page, page_text(of, found, page, csv))
        err.out(f"written: {page}")
    if figures is not None:
        err.out(f"drawn: {draw_study(of, found, figures)}")
    return 0


def collect(
    study: Study, folders: Sequence[Path], csv: Path | None, *, with_controls: bool
) -> tuple[Table, list[str]]:
    """Gather results from the file, the folders and the controls.

    Returns
    -------
    results : Table
    problems : list of str
        The reason for everything that is not used.

    Raises
    ------
    FedGraphError
        There is no result, or results are of different data.
    """
    results, problems = frame.table([]), list[str]()
    if csv is not None and csv.exists():
        results = frame.read(csv)
    if folders:
        found = find_runs(folders, attacked=True)
        new, problems = read_results(found, per_client=study.spread == "clients")
        results = frame.merge(results, new)
    if with_controls:
        results = frame.merge(results, control_results(results, study.controls))
    if results.empty:
        words = "".join(f"\n  {problem}" for problem in problems)
        raise FedGraphError(f"no results: give folders of runs, or --csv FILE{words}")
    return results, problems


def page_text(study: Study, found: Rows, place: Path, csv: Path | None) -> str:
    """Write all tables of a study as a page for ``place``, made from ``csv``.

    Results in no table of the study stand in a table of their own at the end.
    """
    tables = study.tables
    if others := rest(study, found):
        tables = (*tables, StudyTable(title="Other runs", rows=tuple(others)))
    reports = make_reports(replace(study, tables=tables), found)
    shown = [
        rule for rule in RULES if any(rule in measures(of) for of in found.values())
    ]
    name, given, source = study.name, "DIR", ""
    if csv is not None:
        given = f"--csv {csv.as_posix()}"
        link = Path(os.path.relpath(csv, place.parent)).as_posix()
        source = f" from [{csv.name}]({link})"
    head = [
        f"# Tables of runs: {name}",
        paragraph(
            f"Made by `fedgraph study {name} {given} --page"
            f" {place.as_posix()}`{source}; do not edit. What the tables say:"
            f" [results]({study.results or f'../results-{name}.md'})."
        ),
        paragraph(rule_words(shown) + "."),
        paragraph(chance_of(reports)),
    ]
    return "\n\n".join([*head, *map(markdown, reports)]) + "\n"


def rest(study: Study, found: Rows) -> list[str]:
    """Rows of the results that stand in no table, and serve no noise floor."""
    shown = {row for table in study.tables for row in table.rows}
    return sorted(row for row in {*found} - shown if not is_draw(row))
