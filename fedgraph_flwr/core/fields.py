"""What may stand in a client's reply: each field is declared once, as data.

Common fields are those of ``fedgraph_flwr.common_fields``; a method declares its own in
``FIELDS`` of its parameters. Gate, policy and server read nothing else.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import cache, lru_cache

LARGEST = 1e100  # of any number: sums and squares of such are finite
_HAIR = 1e-9
COMPUTED = "features that a trained model computes"  # ``what`` of several methods


class Phase(Enum):
    """The kind of message that clients were asked to answer."""

    ROLL_CALL = "roll call"
    OPENING = "opening"
    TRAINING = "training"
    HAND_IN = "hand-in"
    CLOSING = "closing evaluation"


class Kind(Enum):
    """Part of a parcel in which a field stands."""

    ARRAY = "an array"
    NUMBER = "a number"
    TEXT = "a text"


@dataclass(frozen=True, eq=False)  # found by identity, which is fast
class Field:
    """One field of a client's reply, or all fields whose names begin alike.

    Parameters
    ----------
    name : str
        Whole name; with ``rest`` its beginning.
    phases : tuple of Phase
        Messages whose replies may hold it.
    rest : str
        Regular expression of what follows the beginning; "" if nothing does.
    what : str
        What it tells, for a refusal; needed unless it may always leave.
    consent : str
        Field of ``Policy`` without which it stays at a site; "" if it may always leave.
    is_clean : bool
        Whether it leaves even a site that lets out nothing but clipped updates: it is
        not made from data, or a policy's page names it.
    is_lasting : bool
        Whether a client that comes back must say the same.
    of_neighbour : bool
        Whether ``rest`` is a client, which must be a neighbour of the sender.
    least, most : float
        Range of a number; of an array, ``most`` bounds absolute values.
    pattern, words : str
        Regular expression of a text, and the same in words.
    """

    name: str
    kind: Kind
    phases: tuple[Phase, ...]
    _: KW_ONLY
    rest: str = ""
    what: str = ""
    consent: str = ""
    is_clean: bool = False
    is_lasting: bool = True
    of_neighbour: bool = False
    least: float = 0.0
    most: float = LARGEST
    pattern: str = ".{0,1000}"
    words: str = "a short text"

    def wrong(self, value: object) -> str:
        """Say what a value should be; "" if it is that."""
        if self.kind is Kind.TEXT:
            is_text = isinstance(value, str)
            is_right = is_text and re.fullmatch(self.pattern, str(value), re.DOTALL)
            return "" if is_right else self.words
        low, high = self.least - _HAIR, self.most + _HAIR  # of a share, rounded
        if isinstance(value, int | float) and low <= value <= high:  # NaN is not
            return ""
        return f"a number from {self.least:g} to {self.most:g}"

    def match(self, name: str) -> re.Match[str] | None:
        """Match a name in a reply; None if it is of another field."""
        if not name.startswith(self.name):
            return None
        return _pattern(self.name, self.rest).fullmatch(name)

    def parts(self, name: str) -> dict[str, str]:
        """Read those named groups of ``rest`` that a name has."""
        return _parts(self, name)


@cache
def _pattern(name: str, rest: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(name)}(?P<rest>{rest})")


@lru_cache(maxsize=4096)
def _parts(field: Field, name: str) -> dict[str, str]:
    found = field.match(name)
    return {k: v for k, v in found.groupdict().items() if v} if found else {}


@lru_cache(maxsize=4096)
def find(fields: tuple[Field, ...], kind: Kind, name: str) -> Field | None:
    """Return the first field of a kind to which a name belongs; None if none has it."""
    return next((f for f in fields if f.kind is kind and f.match(name)), None)
