"""Words of the embedding tables: cells, captions, claims and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .compare_runs import as_text
from .embedding_notes import control_notes, make_notes
from .embedding_rows import EmbeddingGroup
from .embedding_runs import EmbeddingRun
from .embedding_stats import (
    ENOUGH_SEEDS,
    Claim,
    Difference,
    Row,
    Spread,
    load_target,
    make_claims,
    make_row,
    target_source,
    untrained_row,
)

NONE = "-"
K_MEANS = (
    "k-means++ with 10 starts of at most 300 steps, seed of the run,"
    " k = number of classes"
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """Heading and what stands below it."""

    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """One table in words."""

    title: str
    headings: Sequence[str]
    is_text: Sequence[bool]
    cells: Sequence[Sequence[str]]
    caption: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """All tables of a group, and notes that belong to each of them."""

    title: str
    sheets: Sequence[Sheet]
    notes: Sequence[str]


def make_report(
    group: EmbeddingGroup, transform: str, controls: Sequence[Row], why_not: str
) -> Report:
    """Compute a group's tables and word them.

    Parameters
    ----------
    group : EmbeddingGroup
    transform : str
        What the headline columns were computed on.
    controls : sequence of Row
        Rows of trivial features; ``why_not`` says why there are none.
    """
    rows = [
        make_row(name, runs, transform, load_target(group, name))
        for name, runs in group.rows.items()
    ]
    untrained = untrained_row(group, transform)
    shown = [*([untrained] if untrained else []), *controls, *rows]
    protocol = _protocol(group, transform)
    claims = make_claims(group, transform)
    title = f"{group.dataset}, {group.num_clients} clients, EMD {_emd(group)}"
    sheets = [
        _sheet(
            f"{title}: clusters", _main_columns(), shown, protocol + _reading(group)
        ),
        _sheet(f"{title}: what lies behind", _more_columns(), shown, protocol),
    ]
    if claims:
        sheets.append(_claim_sheet(f"{title}: claims", claims, protocol))
    notes = [*control_notes(shown, why_not), *make_notes(group, shown, claims)]
    return Report(title=title, sheets=sheets, notes=notes)


def signed(value: float, digits: int = 2) -> str:
    """Write a number with its sign, without a negative zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _main_columns() -> list[Column]:
    return [
        Column(heading="row", cell=lambda row: row.label, is_text=True),
        Column(
            heading="seeds",
            cell=lambda row: ", ".join(map(str, row.seeds)),
            is_text=True,
        ),
        Column(heading="ACC", cell=lambda row: _full(row.last.get("accuracy"))),
        Column(heading="F1", cell=lambda row: _full(row.last.get("macro-f1"))),
        Column(heading="ACC round 0", cell=lambda r: _short(r.first.get("accuracy"))),
        Column(heading="F1 round 0", cell=lambda r: _short(r.first.get("macro-f1"))),
        Column(
            heading="gain over own round 0 [95 %]", cell=lambda row: _points(row.gain)
        ),
        Column(heading="best round by labels", cell=_best),
        Column(
            heading="paper ACC",
            cell=lambda row: _paper(row.target.accuracy if row.target else None),
        ),
        Column(
            heading="paper F1",
            cell=lambda row: _paper(row.target.macro_f1 if row.target else None),
        ),
    ]


def _more_columns() -> list[Column]:
    def at(name: str, *, first: bool = False, digits: int = 2) -> Callable[[Row], str]:
        return lambda row: _short((row.first if first else row.last).get(name), digits)

    def share(row: Row) -> str:
        found = row.last.get("smallest-cluster")
        return NONE if found is None else f"{found.mean:.1f} ({min(found.values):.1f})"

    return [
        Column(heading="row", cell=lambda row: row.label, is_text=True),
        Column(heading="NMI", cell=at("nmi", digits=3)),
        Column(heading="ARI", cell=at("ari", digits=3)),
        Column(heading="smallest cluster % (least)", cell=share),
        Column(heading="ACC l2", cell=at("accuracy-l2")),
        Column(heading="ACC raw", cell=at("accuracy-raw")),
        Column(heading="ACC log1p", cell=at("accuracy-log1p")),
        Column(heading="probe", cell=at("probe-accuracy")),
        Column(heading="probe round 0", cell=at("probe-accuracy", first=True)),
        Column(heading="SVM", cell=at("svm-accuracy")),
        Column(heading="SVM round 0", cell=at("svm-accuracy", first=True)),
    ]


def _sheet(
    title: str, columns: Sequence[Column], rows: Sequence[Row], caption: str
) -> Sheet:
    paper = any(row.target for row in rows)
    used = [c for c in columns if paper or not c.heading.startswith("paper")]
    return Sheet(
        title=title,
        headings=[c.heading for c in used],
        is_text=[c.is_text for c in used],
        cells=[[c.cell(row) for c in used] for row in rows],
        caption=caption,
    )


def _claim_sheet(title: str, claims: Sequence[Claim], protocol: str) -> Sheet:
    return Sheet(
        title=title,
        headings=("claim: above 0", "ACC [95 %]", "verdict", "F1 [95 %]", "verdict F1"),
        is_text=(True, False, True, False, True),
        cells=[
            [
                claim.text,
                _points(claim.accuracy),
                _verdict(claim.accuracy, claim.missing),
                _points(claim.macro_f1),
                _verdict(claim.macro_f1, claim.missing),
            ]
            for claim in claims
        ],
        caption=protocol
        + " Differences in points at the last round, paired by seed, with 95 % t"
        " intervals. shown: the interval lies above 0; contradicted: below 0; not"
        f" shown: neither, or fewer than {ENOUGH_SEEDS} pairs.",
    )


def _protocol(group: EmbeddingGroup, transform: str) -> str:
    runs = group.runs
    commits = sorted({r.commit for runs in group.rows.values() for r in runs})
    classes = {len(c) for r in runs for c in r.run.summary.get("class_counts") or []}
    k = f" ({classes.pop()})" if len(classes) == 1 else ""
    return (
        f"Protocol: seeds {_listed(r.run.seed for r in runs)}; split"
        f" {group.split_hash[:12]} ({_setting(runs, 'partition')}, dominance"
        f" {_setting(runs, 'dominance')}, split seed"
        f" {_listed(r.run.split[1] for r in runs)}), EMD {_emd(group)};"
        f" {group.num_clients} clients, {_listed(r.num_graphs for r in runs)} graphs;"
        f" {_listed(r.last_round for r in runs)} rounds of"
        f" {_setting(runs, 'local-epochs')} local epochs; transform {transform};"
        f" {K_MEANS}{k}; evaluated rounds"
        f" {' or '.join(sorted({_listed(r.rounds) for r in runs}))}; commits"
        f" {', '.join(commits)}."
    )


def _reading(group: EmbeddingGroup) -> str:
    words = (
        " In percent, mean ± std over seeds (ddof 1), least to largest. Headline: the"
        " last round. Gain: ACC at the last round minus at round 0 of the same run,"
        " points, mean and 95 % t interval over n paired seeds. Best round by labels:"
        " chosen by the labels, optimistic. ACC after Hungarian matching of clusters to"
        " classes; F1 is macro."
    )
    counts = [c for r in group.runs if (c := r.run.summary.get("class_counts"))]
    if counts:
        of_class = [sum(column) for column in zip(*counts[0], strict=True)]
        share = max(of_class) / sum(of_class)
        f1 = 2 * share / (1 + share) / len(of_class)
        words += f" All in one class: ACC {100 * share:.2f}, F1 {100 * f1:.2f}."
    if source := target_source(group):
        words += f" Paper: {source}."
    return words


def _full(found: Spread | None) -> str:
    if found is None:
        return NONE
    span = f" ({min(found.values):.2f} to {max(found.values):.2f})"
    return _short(found) + (span if len(found.values) > 1 else "")


def _short(found: Spread | None, digits: int = 2) -> str:
    if found is None:
        return NONE
    std = NONE if found.std is None else f"{found.std:.{digits}f}"
    return f"{found.mean:.{digits}f} ± {std}"


def _points(found: Difference | None) -> str:
    if found is None:
        return NONE
    span = ""
    if found.interval:
        low, high = found.interval
        span = f" [{signed(low)}, {signed(high)}]"
    return f"{signed(found.mean)}{span} (n={found.num_pairs})"


def _verdict(found: Difference | None, missing: str) -> str:
    return f"not shown ({missing})" if found is None else found.verdict


def _best(row: Row) -> str:
    if row.best is None:
        return NONE
    return f"{_short(row.best)} (rounds {', '.join(map(str, row.best_rounds))})"


def _paper(value: tuple[float, float] | None) -> str:
    return f"{value[0]:.2f} ± {value[1]:.2f}" if value else NONE


def _emd(group: EmbeddingGroup) -> str:
    return "unknown" if group.emd is None else f"{group.emd:.4f}"


def _setting(runs: Sequence[EmbeddingRun], key: str) -> str:
    values = {as_text(r.run.settings.get(key, "unset")) for r in runs}
    return " or ".join(sorted(values))


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(values))))
