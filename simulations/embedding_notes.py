"""Notes below the embedding tables: what a reader must not overlook."""

from __future__ import annotations

from collections.abc import Sequence

from .compare_runs import as_text
from .embedding_rows import EmbeddingGroup, unusual
from .embedding_runs import EmbeddingRun
from .embedding_stats import ENOUGH_SEEDS, UNTRAINED, Claim, Row

# Share of the smallest cluster, in percent, below which k-means parted off outliers.
_OUTLIERS = 1.0


def control_notes(rows: Sequence[Row], why_not: str) -> list[str]:
    """Say how the control rows came about, or why there are none."""
    notes = []
    if not any(row.label == UNTRAINED for row in rows):
        notes.append("no pooled run of method fclg with round 0: no untrained encoder.")
    if why_not:
        notes.append(f"no control rows of trivial features: {why_not}.")
    else:
        notes.append(
            "trivial features are clustered as they are named, not by the headline's"
            " transform; their columns by transform are those of the named features."
            " Their probes take --control-probes."
        )
    return notes


def make_notes(
    group: EmbeddingGroup, rows: Sequence[Row], claims: Sequence[Claim]
) -> list[str]:
    """Say what a reader of a group's tables must know."""
    notes = _setting_notes(group)
    for name, runs in group.rows.items():
        if name in group.guests:
            notes.append(
                f"{name}: one client with all graphs, split"
                f" {runs[0].run.split[0][:12]}; EMD 0;"
                f" {' or '.join(sorted({str(r.last_round) for r in runs}))} rounds."
            )
    if any(", per client" in row.base or ", scored" in row.base for row in rows):
        notes.append(
            "rows per client or scored per client: each client's graphs are clustered"
            " apart, with a matching of their own, and the unweighted mean over clients"
            " is shown; not comparable with the other rows."
        )
    if any(_is_normalised_kl(r) for runs in group.rows.values() for r in runs):
        notes.append(
            "an Intra-KL row takes its softmax over embeddings of unit length"
            " (fclg.distill-normalize), the paper over raw ones: so its second loss is"
            " small beside the first."
        )
    for row in rows:
        notes += _row_notes(row)
    if len({row.seeds for row in rows}) > 1:
        notes.append("rows differ in seeds; paired differences use the common ones.")
    return [*notes, *_claim_notes(claims), *_run_notes(group)]


def _is_normalised_kl(r: EmbeddingRun) -> bool:
    settings = r.run.settings
    is_kl = settings.get("fclg.inter") == "kl"
    return is_kl and settings.get("fclg.distill-normalize") is True


def _setting_notes(group: EmbeddingGroup) -> list[str]:
    """Name settings off the defaults that the names of rows do not tell."""
    by_words: dict[str, list[str]] = {}
    for name, runs in group.rows.items():
        told = {*dict(name.settings), "fclg.inter"}
        found: dict[str, set[str]] = {}
        for r in runs:
            for key, value in unusual(r).items():
                if key not in told:
                    found.setdefault(key, set()).add(as_text(value))
        if found:
            words = ", ".join(
                f"{key}={' or '.join(sorted(values))}"
                for key, values in sorted(found.items())
            )
            by_words.setdefault(words, []).append(str(name))
    return [
        f"settings off the method's defaults: {words} ({'; '.join(names)})."
        for words, names in by_words.items()
    ]


def _row_notes(row: Row) -> list[str]:
    notes = []
    share = row.last.get("smallest-cluster")
    few = sum(v < _OUTLIERS for v in share.values) if share else 0
    if few:
        notes.append(
            f"{row.label}: in {few} of {len(row.seeds)} seeds the smallest cluster has"
            f" less than {_OUTLIERS:g} % of the graphs: k-means parted off outliers."
        )
    pairs = row.gain.num_pairs if row.gain else 0
    if not row.is_control and pairs < len(row.seeds):
        notes.append(f"{row.label}: {pairs} of {len(row.seeds)} seeds have a round 0.")
    return notes


def _claim_notes(claims: Sequence[Claim]) -> list[str]:
    if not claims:
        return ["no row FCLG: no claims."]
    pairs = [c.accuracy.num_pairs for c in claims if c.accuracy]
    if pairs and min(pairs) < ENOUGH_SEEDS:
        return [
            f"claims with fewer than {ENOUGH_SEEDS} pairs (n in the table) show"
            " nothing, wherever their intervals lie."
        ]
    return []


def _run_notes(group: EmbeddingGroup) -> list[str]:
    everyone = [r for runs in group.rows.values() for r in runs]
    notes = []
    if failed := [r.run.path.name for r in everyone if r.run.summary.get("failures")]:
        notes.append(f"runs in which clients failed: {', '.join(failed)}.")
    dirty = sum(r.commit.endswith("+dirty") for r in everyone)
    if dirty:
        notes.append(f"{dirty} of {len(everyone)} runs are of code with local changes.")
    if len({r.commit for r in everyone}) > 1:
        notes.append("runs were made at different commits.")
    return notes
