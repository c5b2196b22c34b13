"""Words of a comparison: cells, captions and notes, for the terminal and for docs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgraph_flwr.tasks import GRAPH_EMBEDDING

from .compare_runs import Group, Run, shared_differences
from .compare_stats import (
    RULES,
    Row,
    Score,
    Target,
    baseline,
    load_targets,
    make_rows,
    paper,
)
from .markup import pipe_table

NONE = "-"
_TEXTS = ("method", "seeds")
_OPTIONAL = ("ARI", "best_val_trained")
_RULE_WORDS = {
    "final": "final (last round)",
    "best_val": "best_val (round of the best mean validation accuracy)",
    "best_val_trained": "best_val_trained (the same, of models after local training)",
    "best_snapshot": (
        "best_snapshot (per client the best test accuracy over cluster snapshots;"
        " reference protocol, optimistic)"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """Heading, what stands below it, and whether only the paper knows it."""

    heading: str
    cell: Callable[[Row], str]
    is_paper: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """A group's table in words."""

    title: str
    rule: str
    rows: Sequence[Row]
    caption: str
    notes: Sequence[str]


def make_report(group: Group, rule: str) -> Report:
    """Compute a group's rows and word its protocol."""
    rows = make_rows(group, rule)
    _, _, num_clients = group.split
    metric = sorted({_what(run) for run in group.runs})
    return Report(
        title=f"{group.dataset}: {' / '.join(metric)}, {num_clients} clients",
        rule=rule,
        rows=rows,
        caption=_caption(group, rule),
        notes=_notes(group, rows),
    )


def print_terminal(report: Report, console: Console) -> None:
    """Print two tables: 14 columns do not fit a terminal side by side."""
    names = [Column(heading="method", cell=lambda row: row.label)]
    relations = f"{report.title}, against the baselines by rule {report.rule}"
    for title, columns in (
        (report.title, _accuracy_columns()),
        (relations, _relation_columns()),
    ):
        shown = [*names, *_used(columns, report.rows)]
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
        for column in shown:
            table.add_column(
                column.heading,
                justify="left" if column.heading in _TEXTS else "right",
                style="dim" if column.is_paper else "",
            )
        for row in report.rows:
            table.add_row(*(escape(column.cell(row)) for column in shown))
        console.print(table)
    console.print(escape(report.caption), style="italic", highlight=False)
    for note in report.notes:
        console.print(escape(f"Note: {note}"), style="yellow", highlight=False)
    console.print()


def markdown(report: Report) -> str:
    """Write one GitHub table with everything."""
    columns = [
        Column(heading="method", cell=lambda row: row.label),
        *_used([*_accuracy_columns(), *_relation_columns()], report.rows),
    ]
    lines = [
        f"### {report.title}",
        "",
        *pipe_table(
            [column.heading for column in columns],
            [column.heading in _TEXTS for column in columns],
            [[column.cell(row) for column in columns] for row in report.rows],
        ),
        "",
        report.caption,
    ]
    for note in report.notes:
        lines += ["", f"Note: {note}"]
    return "\n".join([*lines, ""])


def _accuracy_columns() -> list[Column]:
    return [
        Column(heading="seeds", cell=lambda row: ", ".join(map(str, row.seeds))),
        *(Column(heading=rule, cell=_score_cell(rule)) for rule in RULES),
        Column(
            heading="paper",
            is_paper=True,
            cell=lambda row: (
                f"{row.target.mean:.4f} ± {row.target.std:.3f}" if row.target else NONE
            ),
        ),
    ]


def _relation_columns() -> list[Column]:
    return [
        Column(
            heading="min gain",
            cell=lambda row: _signed(row.gain.smallest, 4) if row.gain else NONE,
        ),
        Column(heading="paper min gain", cell=_paper_min_gain, is_paper=True),
        Column(
            heading="not worse",
            cell=lambda row: (
                f"{row.gain.num_improved}/{row.gain.num_clients}" if row.gain else NONE
            ),
        ),
        Column(heading="paper not worse", cell=_paper_improved, is_paper=True),
        Column(heading="vs fedavg (points)", cell=_versus_fedavg),
        Column(heading="clusters", cell=lambda row: _span(row.num_clusters)),
        Column(
            heading="ARI",
            cell=lambda row: (
                NONE if row.rand_index is None else f"{row.rand_index:.2f}"
            ),
        ),
        Column(
            heading="wall s (median)",
            cell=lambda row: (
                NONE
                if row.wall_s is None or math.isnan(row.wall_s)
                else f"{row.wall_s:.0f}"
            ),
        ),
    ]


def _used(columns: Iterable[Column], rows: Sequence[Row]) -> list[Column]:
    """Leave out what no row has: the paper's columns, and what other data have."""
    return [
        column
        for column in columns
        if not (column.is_paper or column.heading in _OPTIONAL)
        or any(column.cell(row) != NONE for row in rows)
    ]


def _what(run: Run) -> str:
    return f"{run.summary.get('split', 'test')} {run.summary.get('metric')}"


def _targets(group: Group) -> dict[str, Target]:
    """Give the paper's figures by method, of the methods that have a row."""
    methods = {run.method for run in group.runs}
    targets = load_targets(group.dataset)
    return {method: t for method, t in targets.items() if method in methods}


def _caption(group: Group, rule: str) -> str:
    split_hash, split_seed, num_clients = group.split
    seeds = sorted({run.seed for run in group.runs})
    rounds = sorted({int(run.summary.get("rounds") or 0) for run in group.runs})
    sentences = [
        f"Protocol: rule {_RULE_WORDS[rule]} for gains and differences;"
        f" seeds {', '.join(map(str, seeds))}; split {split_hash[:12]}"
        f" (split seed {split_seed}{group.data and f', data {group.data}'});"
        f" {num_clients} clients;"
        f" {' or '.join(map(str, rounds))} rounds.",
        "Accuracy: mean over clients of each client's mean over seeds ± mean over"
        " clients of each client's std over seeds (ddof 1).",
    ]
    if local := baseline(group, "local"):
        sentences.append(
            f"Gain: per client over self-train (row {local}), mean over the common"
            " seeds; not worse: clients with gain >= 0, which the paper calls improved."
        )
    if fedavg := baseline(group, "fedavg"):
        sentences.append(
            f"vs fedavg: difference in mean accuracy to row {fedavg}, mean over the n"
            " common seeds."
        )
    if targets := _targets(group):
        source, paper_rounds = paper()
        table = next(iter(targets.values())).table
        sentences.append(
            f"Paper: {source}, table {table}, {paper_rounds} rounds; its rule is"
            " best_snapshot for gcfl and gcfl+, the last round for the others."
        )
    return " ".join(sentences)


def _notes(group: Group, rows: Sequence[Row]) -> list[str]:
    notes = []
    targets = _targets(group)
    published = next((t.num_clients for t in targets.values()), None)
    if published is not None and published != group.split[2]:
        notes.append(
            f"the paper has {published} clients on {group.dataset}, these runs have"
            f" {group.split[2]}; its figures are left out."
        )
    for key, values in shared_differences(group).items():
        by_value: dict[str, list[str]] = {}
        for label, value in values.items():
            by_value.setdefault(value, []).append(label)
        words = "; ".join(f"{v} ({', '.join(n)})" for v, n in by_value.items())
        notes.append(f"rows differ in {key}: {words}.")
    if any(run.summary.get("task") == GRAPH_EMBEDDING.name for run in group.runs):
        notes.append(
            f"runs of {GRAPH_EMBEDDING.name}: their own columns and rules are those of"
            " python -m simulations.embedding_table."
        )
    elif baseline(group, "local") is None:
        notes.append("no self-train run (method local): no gains.")
    for row in rows:
        if row.gain and row.gain.num_seeds < len(row.seeds):
            notes.append(
                f"{row.label}: gain over {row.gain.num_seeds} of {len(row.seeds)}"
                " seeds; self-train lacks the others."
            )
        for rule, found in row.scores.items():
            if found and found.missing:
                notes.append(
                    f"{row.label}, {rule}: clients {list(found.missing)} are missing in"
                    " at least one run and left out."
                )
    failures = [r.path.name for r in group.runs if r.summary.get("failures")]
    if failures:
        notes.append(f"runs in which clients failed: {', '.join(failures)}.")
    return notes


def _score_cell(rule: str) -> Callable[[Row], str]:
    return lambda row: _score(row.scores[rule])


def _score(found: Score | None) -> str:
    if found is None:
        return NONE
    return f"{found.mean:.4f} ± {NONE if found.std is None else f'{found.std:.3f}'}"


def _paper_min_gain(row: Row) -> str:
    if row.target is None or row.target.min_gain is None:
        return NONE
    return _signed(row.target.min_gain, 4)


def _paper_improved(row: Row) -> str:
    if row.target is None or row.target.num_improved is None:
        return NONE
    return f"{row.target.num_improved}/{row.target.num_clients}"


def _versus_fedavg(row: Row) -> str:
    if row.versus_fedavg is None:
        return NONE
    points, num_seeds = row.versus_fedavg
    return f"{_signed(points, 2)} (n={num_seeds})"


def _signed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+.{digits}f}"  # + 0.0: no "-0.00"


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return NONE
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
