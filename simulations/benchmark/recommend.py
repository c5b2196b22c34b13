"""Which method to take for a data set: one answer, no stronger than its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..tables.captions import known_text, points_text, subtract
from ..tables.frame import Table
from ..tables.stats import ENOUGH_SPLITS
from .verdict import BETTER, CEILING, Duel, inert_words

ALONE = "local"


def recommend(
    data: str,
    order: Sequence[str],
    rows: Mapping[str, Table],
    *,
    rule: str,
    held_out: float,
    floor: float,
) -> str:
    """Name the simplest method that beats training alone and that no other beats.

    Parameters
    ----------
    order : sequence of str
        Trained methods of the federation, the simplest first.
    rows : mapping of str to Table
        Results by method, with ``ALONE``, all pairs complete.

    Returns
    -------
    str
        In words, with the ceiling, the floor, and who would lose.
    """

    def duel(a: str, b: str) -> Duel:
        return Duel(
            candidate=a,
            opponent=b,
            data=data,
            difference=subtract(a, b, rule, rows),  # type: ignore[arg-type]
            held_out=held_out,
            floor=floor,
            inert=inert_words(rows[a], rows[b]),
        )

    duels = {m: duel(m, ALONE) for m in order}
    splits = min(d.difference.num_splits for d in duels.values())
    if splits < ENOUGH_SPLITS:
        return f"{data}: no advice, of {splits} splits; take {ENOUGH_SPLITS} or more."
    better = [m for m, d in duels.items() if d.word == BETTER]
    beaten = {m for m in better if any(duel(o, m).word == BETTER for o in better)}
    best = next((m for m in better if m not in beaten), ALONE)
    if best != ALONE:
        won = duels[best].difference
        losers = [str(c) for c, gain in won.by_client.items() if gain < 0]
        who = f"clients {', '.join(losers)} lose" if losers else "nobody loses"
        words = [
            f"{data}: take {best}. It is better than training alone by"
            f" {points_text(won, held_out)} points, and no simpler method is shown to"
            f" be, nor another to beat it; on average {who}"
        ]
    else:
        most = max(duels, key=lambda m: duels[m].difference.interval(held_out)[1])
        high = duels[most].difference.interval(held_out)[1]
        seen = duels[most].difference.detectable(held_out)
        words = [
            f"{data}: train alone. No method is shown to be better; the largest gain"
            f" that is not excluded is {high:+.2f} points, of {most}, for which a true"
            f" gain of {seen:.2f} would be shown in 80 % of such comparisons"
        ]
    if CEILING in rows:
        above = subtract(CEILING, best, rule, rows)
        if above is not None and above.num_pairs:
            words.append(f"all data in one place: {points_text(above, held_out)} more")
    words.append(f"noise floor {known_text(floor)}")
    return "; ".join(words) + "."
