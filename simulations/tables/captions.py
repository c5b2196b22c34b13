"""Words of a study's tables: cells, captions and notes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fedgraph_flwr.results.selection import PROTOCOLS

from ..markup import Report
from .frame import ERRORS, PAIR, PER_CLIENT, RULES, START, Table, from_start, pair
from .stats import (
    BELOW,
    ENOUGH_SPLITS,
    NOT_SHOWN,
    SHOWN,
    Difference,
    noise_floor,
    split_means,
)
from .studies import OWN_START, Study, StudyTable

NONE = "-"
LEAST = "least "
_SPREADS = {
    "runs": "mean over splits of the mean of their runs ± std (ddof 1) over runs",
    "clients": (
        "mean over clients of each client's mean over splits ± mean over clients of"
        " each client's std (ddof 1) over runs"
    ),
}
Rows = Mapping[str, Table]
Cells = dict[str, str]  # by heading


def make_reports(study: Study, found: Rows) -> list[Report]:
    """Word all tables that show a row which no earlier table shows as fully."""
    reports = []
    shown: set[tuple[str, tuple[str, ...]]] = set()
    for table in study.tables:
        columns = tuple(table.columns)
        if new := {(r, columns) for r in table.rows if r in found} - shown:
            shown |= new
            reports.append(make_report(study, table, found))
    return reports


def make_report(study: Study, table: StudyTable, found: Rows) -> Report:
    """Word one table: scores, differences, protocol."""
    columns = _columns(study, table)
    if table.grid or not {*columns.values()} & {*RULES}:  # cells are means of runs
        study = replace(study, spread="runs")
    rows = [row for row in table.rows if row in found]
    lines = [_row_cells(study, row, found[row], columns) for row in rows]
    is_grid = table.grid and study.rule in RULES
    shown = _grid(study, table, found) if is_grid else _used(lines)
    parts: list[pd.DataFrame | str] = [shown]
    if missing := [row for row in table.rows if row not in found]:
        parts.append(f"Not run: {', '.join(missing)}.")
    floor = floor_of(study, rows, found)
    differences = [
        _difference_cells(study, a, b, found, floor) for a, b in table.differences
    ]
    if kept := [cells for cells in differences if cells]:
        parts.append(_used(kept))
    parts.append(_protocol(study, pd.concat([found[row] for row in rows]), floor))
    notes = [*_notes(study, {row: found[row] for row in rows}), *table.notes]
    return Report(title=table.title, parts=[*parts, *(f"Note: {n}" for n in notes)])


def _grid(study: Study, table: StudyTable, found: Rows) -> pd.DataFrame:
    """Cross rows with the words that end their names; the lowest cell goes last.

    Pairs of seeds count that all rows have, each over the clients that all have.
    """
    scores: dict[str, list[float]] = {row: [] for row in table.rows if row in found}
    both = pd.concat([found[row].assign(row=row) for row in scores])
    for _, of_pair in both.groupby(PAIR):
        if len(of_pair) < len(scores):
            continue
        clients = of_pair[study.rule + PER_CLIENT]
        common = set.intersection(*map(set, clients))
        for row, known in zip(of_pair["row"], clients, strict=True):
            scores[row].append(statistics.fmean(known[c] for c in sorted(common)))
    lines = []
    for name in dict.fromkeys(row.rpartition("-")[0] for row in scores):
        cells = {w: of for w in table.grid if (of := scores.get(f"{name}-{w}"))}
        if not cells:
            continue
        low = min(cells, key=lambda w: statistics.fmean(cells[w]))
        lowest = f"{statistics.fmean(cells[low]):.4f} ({low})"
        words = {w: _score(of, range(len(of))) for w, of in cells.items()}
        lines.append({"row": name, **words, "lowest": lowest})
    return pd.DataFrame(lines).fillna(NONE)


def rule_words(rules: Iterable[str]) -> str:
    """Say what each rule means."""
    return "Rules: " + "; ".join(
        f"`{rule}`, {PROTOCOLS[rule].replace(';', ',')}" for rule in rules
    )


def subtract(a: str, b: str, measure: str, found: Rows) -> Difference | None:
    """Subtract row ``b``, or the start of ``a``; None if nothing can be subtracted."""
    if a not in found or b not in (*found, OWN_START):
        return None
    if b != OWN_START:
        return pair(found[a], found[b], measure)
    return from_start(found[a], measure)


def _columns(study: Study, table: StudyTable) -> dict[str, str]:
    """Headings and measures of a table's columns; the study's rule goes first."""
    found: dict[str, str] = {}
    for heading, measure in (table.columns or study.columns).items():
        if measure != "rules":
            found[heading] = measure
            continue
        ordered = sorted(
            RULES, key=lambda rule: (rule != study.rule, RULES.index(rule))
        )
        found |= {rule: rule for rule in ordered}
        if OWN_START in {b for _, b in table.differences}:
            found[OWN_START] = START
    return found


def _row_cells(
    study: Study, row: str, results: Table, columns: Mapping[str, str]
) -> Cells:
    target = study.targets.get(row)
    published = {m for t in study.targets.values() for m in t.scores}
    headings = {measure: heading for heading, measure in columns.items()}
    ours = {heading: _cell(study, m, results) for heading, m in columns.items()}
    papers = {
        "paper" if len(published) == 1 else f"paper {headings[m]}": _paper(
            target.scores.get(m) if target else None
        )
        for m in columns.values()
        if m in published
    }
    return {"row": row, **ours, **papers}


def _cell(study: Study, measure: str, results: Table) -> str:
    if measure == "pairs":
        return str(len(results))
    if measure == "seeds":
        return ", ".join(map(str, sorted(set(results["seed"]))))
    if measure == "rounds":
        return _span(results["rounds"])
    if measure == "epsilon":
        epsilons = sorted(set(results["edge_epsilon"]))
        return " or ".join(f"{e:g}" if e else NONE for e in epsilons)
    if measure == "wall_s":
        return f"{results['wall_s'].median():.0f}"
    splits = results["split_hash"]
    if study.spread == "clients" and measure in RULES:
        return _client_score(_clients(results, measure), splits)
    known = results.get(measure.removeprefix(LEAST))
    if known is None or known.isna().any():
        return NONE
    if measure == "clusters":
        return _span(known.astype(int))
    return f"{min(known):.4f}" if measure.startswith(LEAST) else _score(known, splits)


def _score(values: Sequence[float], splits: Iterable[Hashable]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(split_means(values, splits)):.4f}{spread}"


def _clients(results: Table, measure: str) -> Table:
    """Scores of single clients: a line for each run, a column for each client."""
    known = results.reindex(columns=[measure + PER_CLIENT])[measure + PER_CLIENT]
    return pd.DataFrame([of if isinstance(of, dict) else {} for of in known])


def _client_score(runs: Table, splits: Iterable[Hashable]) -> str:
    """Mean of clients' means and of their stds, over clients that every run has."""
    of_clients = [[*of] for _, of in runs.dropna(axis=1).items()]
    if not of_clients:
        return NONE
    means = (statistics.fmean(split_means(of, splits)) for of in of_clients)
    mean = statistics.fmean(means)
    if len(runs) < 2:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.fmean(map(statistics.stdev, of_clients)):.4f}"


def _difference_cells(study: Study, a: str, b: str, found: Rows, floor: float) -> Cells:
    """Cells of one difference; empty if nothing can be subtracted."""
    difference = subtract(a, b, study.rule, found)
    if difference is None:
        return {}
    is_over_local = b.startswith("local")
    target = study.targets.get(a)
    least, count = (target.gain if target and is_over_local else None) or (None, None)
    gains = difference.gains if is_over_local else ()
    also = {
        f"{heading} points [95 %]": _points_or_none(
            subtract(a, b, m, found), study.held_out
        )
        for heading, m in study.also.items()
    }
    return {
        "difference": f"{a} - {b}",
        "pairs": str(difference.num_pairs),
        "points [95 %]": _points_or_none(difference, study.held_out),
        "seen with 80 %": known_text(difference.detectable(study.held_out)),
        "by split": " ".join(f"{m:+.1f}" for m in difference.by_split()),
        **also,
        "verdict": common_verdict(study, a, b, found, floor),
        "smallest gain": f"{min(gains) / 100:+.4f}" if gains else NONE,
        "paper's smallest": NONE if least is None else f"{least:+.4f}",
        "not worse": _not_worse(difference) if gains else NONE,
        "paper's not worse": NONE if count is None else str(count),
        "paper": _published(study, a, b),
    }


def _not_worse(difference: Difference) -> str:
    """Count the clients that gain or tie, e.g. ``"5/10 (4 tied)"``."""
    tied = f" ({difference.num_tied} tied)" if difference.num_tied else ""
    return f"{difference.num_not_worse}/{len(difference.gains)}{tied}"


def common_verdict(
    study: Study, a: str, b: str, found: Rows, floor: float = math.nan
) -> str:
    """Say what the study's rule and all of ``also`` say; not shown if they differ."""
    words = {
        (difference or Difference((), ())).verdict(
            study.held_out, floor if measure == study.rule else math.nan
        )
        for measure in (study.rule, *study.also.values())
        for difference in [subtract(a, b, measure, found)]
    }
    return words.pop() if len(words) == 1 else NOT_SHOWN


def floor_of(study: Study, rows: Iterable[str], found: Rows) -> float:
    """Noise floor of a table: its rows against themselves with ``start-noise``."""
    apart = [
        value
        for row in rows
        for name, draws in found.items()
        if is_draw(name) and name.startswith(f"{row} (")
        for value in pair(draws, found[row], study.rule).values
    ]
    return noise_floor(apart)


def is_draw(row: str) -> bool:
    """Whether a row differs from another in ``start-noise`` alone."""
    return " (start-noise=" in row


def chance_text(num: int, hits: int) -> str:
    """Say how many of so many verdicts find a difference, and how many by chance."""
    if not num:
        return f"No difference has {ENOUGH_SPLITS} splits, so none has a verdict."
    return (
        f"{hits} of {num} verdicts find a difference; about {0.05 * num:.1f} may do so"
        " by chance, as intervals are of 95 % each and not corrected for their number."
        " A gain above the upper end of an interval is excluded. Seen with 80 %: a true"
        " difference of this size would be shown so often."
    )


def chance_of(reports: Iterable[Report]) -> str:
    """:func:`chance_text` on all verdicts of a study's tables."""
    words = [
        word
        for report in reports
        for part in report.parts
        if not isinstance(part, str) and "verdict" in part
        for word in part["verdict"]
    ]
    hits = sum(word in (SHOWN, BELOW) for word in words)
    return chance_text(hits + words.count(NOT_SHOWN), hits)


def _points_or_none(difference: Difference | None, held_out: float) -> str:
    if difference is None or not difference.num_pairs:
        return NONE
    return points_text(difference, held_out)


def known_text(value: float) -> str:
    """Write points without a sign; ``NONE`` if they are not known."""
    return NONE if math.isnan(value) else f"{value:.2f}"


def points_text(difference: Difference, held_out: float) -> str:
    """Write a mean difference and its interval: ``+1.20 [-0.35, +2.75]``."""
    low, high = difference.interval(held_out)
    interval = NONE if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"
    return f"{difference.mean:+.2f} {interval}"


def _published(study: Study, a: str, b: str) -> str:
    """Write the paper's difference of two rows in points."""
    targets = [study.targets.get(row) for row in (a, b)]
    scores = [t.scores[study.rule][0] for t in targets if t and study.rule in t.scores]
    return f"{100 * (scores[0] - scores[1]):+.2f}" if len(scores) == 2 else NONE


def _paper(score: tuple[float, float | None] | None) -> str:
    if score is None:
        return NONE
    value, spread = score
    return f"{value:.4f}" + ("" if spread is None else f" ± {spread:g}")


def _used(lines: Sequence[Cells]) -> pd.DataFrame:
    """Make a table without its empty columns."""
    found = pd.DataFrame(lines)
    return found.loc[:, (found != NONE).any()]


def _protocol(study: Study, results: Table, floor: float) -> str:
    splits = results.groupby(["split_seed", "split_hash"])["seed"]
    words = "; ".join(
        f"{', '.join(map(str, sorted(set(seeds))))} on split {found} (split seed {at})"
        for (at, found), seeds in splits
    )
    noise = f"is {floor:.2f} points: no smaller difference is shown"
    if math.isnan(floor):
        noise = "was not measured"
    commits = ", ".join(sorted(set(results["commit"]) - {""}))
    return (
        f"Protocol: rule {study.rule}; {_SPREADS[study.spread]}. Seeds {words}."
        f" {interval_words(study.held_out)} The noise floor {noise}."
        + (f" Commits {commits}." if commits else "")
        + (f" Paper: {study.paper}." if study.paper else "")
    )


def interval_words(held_out: float) -> str:
    """Say what an interval is."""
    shared = "which share no data"
    if held_out:
        shared = f"corrected for what they share ({held_out:g} held out)"
    return (
        f"Intervals: Student's t over the means of splits, {shared}; a verdict needs"
        f" {ENOUGH_SPLITS} splits (`split-seed`)."
    )


def _notes(study: Study, rows: Rows) -> list[str]:
    """State the notes that a reader must not overlook."""
    notes = []
    for row, results in rows.items():
        inert = Counter(results[results["inert"] != ""]["inert"])
        for words, count in inert.items():
            notes.append(f"{row} {words} ({count} of {len(results)} runs).")
        for rule in RULES if study.spread == "clients" else ():
            known = _clients(results, rule)
            if missing := sorted(set(known) - set(known.dropna(axis=1))):
                notes.append(
                    f"{row}, {rule}: clients {missing} are missing in at least one"
                    " run and left out."
                )
    both = pd.concat([*rows.values()])
    if both["metric"].isin(ERRORS).any():
        notes.append(
            "scores are errors; a point is 0.01 of their unit, and a negative"
            " difference is an improvement."
        )
    return notes


def _span(values: Iterable[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
