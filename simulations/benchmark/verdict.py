"""What a benchmark says: differences, ranks, and a sentence that claims no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ..tables.frame import PAIR, Table
from ..tables.stats import BELOW, ENOUGH_SPLITS, NOT_SHOWN, SHOWN, TIE, Difference

START, MAJORITY, CEILING = "untrained", "majority", "centralized"
BETTER, WORSE, OPEN, EQUAL = "better", "worse", "not separated", "no difference"
INERT = "no verdict"


@dataclass(frozen=True, kw_only=True)
class Duel:
    """A candidate against an opponent on one data set.

    ``held_out`` is what intervals are corrected for.
    ``inert`` says which of them did nothing of its own, so that nothing is judged.
    ``floor``, in points: a smaller difference is not judged; NaN if it is not known.
    """

    candidate: str
    opponent: str
    data: str
    difference: Difference
    held_out: float
    floor: float
    inert: str = ""

    @property
    def word(self) -> str:
        """``INERT``, or one of the words of :func:`judge`."""
        if self.inert:
            return INERT
        return judge(self.difference, self.held_out, self.floor)

    @property
    def wins(self) -> tuple[int, int, int]:
        """Pairs won, tied and lost."""
        values = self.difference.values
        won, lost = sum(v > TIE for v in values), sum(v < -TIE for v in values)
        return won, len(values) - won - lost, lost


def judge(difference: Difference, held_out: float, floor: float) -> str:
    """Judge a difference by its interval and the noise floor, as studies do.

    Differences of 0 in every pair are ``EQUAL``, whatever the number of splits.
    """
    values = difference.values
    if values and all(abs(v) <= TIE for v in values):
        return EQUAL
    words = {SHOWN: BETTER, BELOW: WORSE, NOT_SHOWN: OPEN}
    return words.get(difference.verdict(held_out, floor), INERT)


def sentence(candidate: str, duels: Sequence[Duel], missing: int = 0) -> str:
    """Count in one sentence what the intervals show of a candidate.

    What is not trained, or on all data in one place, is no opponent that a candidate
    has to beat. ``missing`` is the number of comparisons that could not be made.
    """
    against = [
        d
        for d in duels
        if d.candidate == candidate and d.opponent not in (START, MAJORITY, CEILING)
    ]
    words = Counter(d.word for d in against)
    counts = ", ".join(f"{words[w]} {w}" for w in (BETTER, WORSE, EQUAL, OPEN, INERT))
    return (
        f"{candidate} in {len(against) + missing} comparisons with trained methods:"
        f" {counts}, {missing} incomplete."
    )


def inert_words(*sides: Table) -> str:
    """Say which side did nothing of its own in so many pairs that few splits are left.

    "" if enough splits are left, or nobody did nothing.
    """
    both = pd.concat(sides)
    common = both[both.groupby(PAIR)["row"].transform("size") == len(sides)]
    idle = common[common["inert"] != ""]
    worked = common.groupby(PAIR)["inert"].transform("max") == ""
    if common[worked]["split_hash"].nunique() >= ENOUGH_SPLITS:
        return ""
    return " and ".join((idle["row"] + " " + idle["inert"]).unique())
