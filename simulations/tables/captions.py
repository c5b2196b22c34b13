"""Words of a study's tables: cells, captions and notes."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from fedgraph_flwr.results.selection import PROTOCOLS

from ..markup import Report
from .frame import ERRORS, PAIR, PER_CLIENT, RULES, START, Table, from_start, pair
from .stats import NOT_SHOWN, Difference
from .studies import OWN_START, Study, StudyTable

NONE = "-"
LEAST = "least "
_INTERVALS = {
    "t": "Student's t",
    "corrected-t": "Student's t, corrected for what splits of one data set share",
    "corrected-t-nodes": "Student's t, corrected for what splits of one graph share",
    "corrected-t-natural": "Student's t, corrected for what splits share (20/60)",
    "corrected-t-classes": "Student's t, corrected for what splits share (40/20)",
}
_SPREADS = {
    "runs": "mean ± std (ddof 1) over pairs of run seed and split seed",
    "clients": (
        "mean over clients of each client's mean over runs ± mean over clients of each"
        " client's std (ddof 1) over runs"
    ),
}
_SHARED = " over the means of splits, as pairs on one split share it"
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
    if table.grid:  # its cells are means of runs
        study = replace(study, spread="runs")
    rows = [row for row in table.rows if row in found]
    columns = _columns(study, table)
    lines = [_row_cells(study, row, found[row], columns) for row in rows]
    shown = _grid(study, table, found) if table.grid else _used(lines)
    parts: list[pd.DataFrame | str] = [shown]
    if missing := [row for row in table.rows if row not in found]:
        parts.append(f"Not run: {', '.join(missing)}.")
    differences = [_difference_cells(study, a, b, found) for a, b in table.differences]
    if kept := [cells for cells in differences if cells]:
        parts.append(_used(kept))
    parts.append(_protocol(study, pd.concat([found[row] for row in rows])))
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
        words = {w: _score(of) for w, of in cells.items()}
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
    if study.spread == "clients" and measure in RULES:
        return _client_score(_clients(results, measure))
    known = results.get(measure.removeprefix(LEAST))
    if known is None or known.isna().any():
        return NONE
    if measure == "clusters":
        return _span(known.astype(int))
    return f"{min(known):.4f}" if measure.startswith(LEAST) else _score(known)


def _score(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{spread}"


def _clients(results: Table, measure: str) -> Table:
    """Scores of single clients: a line for each run, a column for each client."""
    known = results.reindex(columns=[measure + PER_CLIENT])[measure + PER_CLIENT]
    return pd.DataFrame([of if isinstance(of, dict) else {} for of in known])


def _client_score(runs: Table) -> str:
    """Mean of clients' means and of their stds, over clients that every run has."""
    of_clients = [[*of] for _, of in runs.dropna(axis=1).items()]
    if not of_clients:
        return NONE
    mean = statistics.fmean(map(statistics.fmean, of_clients))
    if len(runs) < 2:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.fmean(map(statistics.stdev, of_clients)):.4f}"


def _difference_cells(study: Study, a: str, b: str, found: Rows) -> Cells:
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
            subtract(a, b, m, found), study.interval
        )
        for heading, m in study.also.items()
    }
    return {
        "difference": f"{a} - {b}",
        "pairs": str(difference.num_pairs),
        "points [95 %]": _points_or_none(difference, study.interval),
        "seen with 80 %": known_text(difference.detectable(study.interval)),
        "by split": " ".join(f"{m:+.1f}" for m in difference.by_split()) or NONE,
        **also,
        "verdict": common_verdict(study, a, b, found) if study.verdicts else NONE,
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


def common_verdict(study: Study, a: str, b: str, found: Rows) -> str:
    """Say what the study's rule and all of ``also`` say; not shown if they differ."""
    words = {
        (difference or Difference((), ())).verdict(study.interval)
        for measure in (study.rule, *study.also.values())
        for difference in [subtract(a, b, measure, found)]
    }
    return words.pop() if len(words) == 1 else NOT_SHOWN


def _points_or_none(difference: Difference | None, kind: str) -> str:
    return (
        points_text(difference, kind) if difference and difference.num_pairs else NONE
    )


def known_text(value: float) -> str:
    """Write points without a sign; ``NONE`` if they are not known."""
    return NONE if math.isnan(value) else f"{value:.2f}"


def points_text(difference: Difference, kind: str) -> str:
    """Write a mean difference and its interval: ``+1.20 [-0.35, +2.75]``."""
    low, high = difference.interval(kind)
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


def _protocol(study: Study, results: Table) -> str:
    splits = results.groupby(["split_seed", "split_hash"])["seed"]
    seeds = {split: set(of_split) for split, of_split in splits}
    words = "; ".join(
        f"{', '.join(map(str, sorted(of_split)))} on split {found} (split seed {split})"
        for (split, found), of_split in seeds.items()
    )
    is_shared = len(seeds) > 1 and max(map(len, seeds.values())) > 1
    over = _SHARED if is_shared else ""
    commits = ", ".join(sorted(set(results["commit"]) - {""}))
    return (
        f"Protocol: rule {study.rule}; {_SPREADS[study.spread]}. Seeds {words}."
        f" Intervals over pairs: {_INTERVALS[study.interval]}{over}."
        + (f" Commits {commits}." if commits else "")
        + (f" Paper: {study.paper}." if study.paper else "")
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
