"""What the cells of a column mean: numbers, dates, names, nothing that is known."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

MIN_COUNT = 10  # graphs or nodes, for a category to be named
_ENDS = 8  # different values that are counted at each end
_MOST_CODES = 3  # as of 97, 98, 99

# Cyrillic and Greek letters that look like Latin ones, and these.
_TWINS = str.maketrans("авекмнорстухіјѕαβεηικνορτυχ", "abekmhopctyxijsabehikvoptyx")
_NOT_KNOWN = re.compile(  # without punctuation and blanks
    r"na|nana|nan(?:ind)?|null|nat|nd|missing|blank|1(?:qnan|ind)|(?:un|not?)"
    r"(?:known|labell?ed|determined|specified|defined|classified|assigned|available"
    r"|provided|reported|recorded|applicable|data|answer|value)"
)
_NO_TEXT = re.compile(r"[-–—.?…'/\\]+|\\N|<?None>?|0000-00-00.*")
TRUTH = {"true": 1.0, "false": 0.0}
_NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_LETTER = re.compile(r"[^\W\d_]+")
LIMITS = "<>=~≤≥≈"
_CODES = r"(?:EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|CZK|kr|Kč|S?Fr|Rs)\.?"
_CURRENCY = re.compile(
    rf"^(?:{_CODES}|[A-Z]{{1,3}}(?=¤))(?=[ ¤]?[-+(]?[\d.,])|¤"
    rf"|(?<=[\d.,)-]) ?{_CODES}$"
)
_DAY = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[Tt ] *(\S+?) ?([-+]\S+)?)?")
_DAY_0 = datetime(1970, 1, 1, tzinfo=UTC)


def alike(name: str) -> Decimal | str:
    """Return what names share that look the same, or are the same number.

    Forms of Unicode, capitals, white space, dashes, letters without a picture, and
    those of other scripts make no difference; nor do 7, 7.0 and 007.
    """
    if name.isascii() and name.isprintable() and name[:1].isalpha():  # of most ids
        return " ".join(name.casefold().split())
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    kinds = ((c, unicodedata.category(c)) for c in text)
    text = "".join("-" if k == "Pd" else c for c, k in kinds if k not in ("Cf", "Cc"))
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text.translate(_TWINS)
    return number if number.is_finite() else text


def by_look(names: Iterable[str]) -> dict[Decimal | str, str]:
    """Return names by what those share that look the same."""
    return {alike(name): name for name in names}


def same_look(what: str, names: Iterable[str]) -> list[str]:
    """Tell how many different names look like another one, and the first two."""
    first: dict[Decimal | str, str] = {}
    pairs = [(a, b) for b in names if (a := first.setdefault(alike(b), b)) != b]
    if not pairs:
        return []
    one, other = pairs[0]
    return [
        f"{len(pairs)} name(s) of {what} look like another's, such as {one!a} and"
        f" {other!a}; if they mean the same, write them alike"
    ]


def twin(cell: str, looks: Mapping[Decimal | str, str]) -> str:
    """Name the one of ``by_look`` that looks like a cell, for a message; or ""."""
    found = looks.get(alike(cell), cell)
    return "" if found == cell else f" ({found!a} looks alike, {cell!a} is not it)"


def is_empty(cell: str) -> bool:
    """Whether a cell holds nothing, or what computers write for it."""
    return not cell or cell.lower() == "nan"


def is_missing(cell: str) -> bool:
    """Whether a cell holds no value: nothing, or a mark such as NA, null or unknown.

    "Na" is none: it is sodium. Nor is "none", as of none, mild, severe; programs write
    None.
    """
    if is_empty(cell) or _NO_TEXT.fullmatch(cell):
        return True
    text = re.sub(r"[\W_]", "", cell).lower()
    return cell != "Na" and _NOT_KNOWN.fullmatch(text) is not None


def as_whole(cell: str) -> str:
    """Return a truth value as 0 or 1, and 1.0 or 1.00 as 1; other texts as they are.

    Columns of whole numbers become 1.0 in many programs if a cell is empty.
    """
    if cell.lower() in TRUTH:
        return f"{TRUTH[cell.lower()]:.0f}"
    return re.sub(r"\.0+$", "", cell) if _NUMERAL.fullmatch(cell) else cell


def by_value(names: Iterable[str]) -> dict[str, str]:
    """Return names of numbers or truth values by ``as_whole``; else nothing.

    Two names of one number are kept apart, so nothing is returned then either.
    """
    names = list(names)
    found = {as_whole(name): name for name in names}
    is_plain = len(found) == len(names) and all(map(_NUMERAL.fullmatch, found))
    return found if is_plain else {}


def readings(cell: str) -> tuple[str, ...]:
    """Return the numbers that a cell may mean, written with a point and no other mark.

    Thousands, currencies, per cents, a decimal comma and signs of limits are read. A
    cell that means no number has none; "3,633" and "5 %" have two.
    """
    text = unicodedata.normalize("NFKC", cell).strip().lstrip(LIMITS + " ")
    text = text.translate(str.maketrans("−–—’‘`´", "---''''"))
    text = "".join(str(unicodedata.decimal(c, c)) for c in text)
    share = {"%": -2, "‰": -3}.get(text[-1:], 0)
    text = "".join("¤" if unicodedata.category(c) == "Sc" else c for c in text)
    text = _CURRENCY.sub("", text.rstrip("%‰ "))
    text = re.sub(r"[.,]-+$", "", text.strip())  # as in "5.-"
    sign = "-" if text[:1] in ("-", "(") or text[-1:] == "-" else ""
    text = text.strip("-() ").removeprefix("+")
    found: dict[Decimal, str] = {}
    for mark, other in (".,", ",."):  # the mark before decimals
        group = rf"[1-9]\d{{0,2}}([ '_{other}])(?:\d{{2,3}}\2)*\d{{3}}"
        rest = rf"((?:[{mark}]\d*)?(?:[eE][-+]?\d{{1,3}})?)"
        match = re.fullmatch(rf"(?=[.,]?\d)({group}|\d*){rest}", text)
        if match is None:
            continue
        whole = re.sub(r"\D", "", match[1])
        number = f"{sign}{whole or 0}{match[3].replace(',', '.')}"
        found.setdefault(Decimal(number), number)
        if share:
            part = Decimal(number).scaleb(share)
            found.setdefault(part, str(part))
    return tuple(found.values())


def read_day(cell: str) -> float:
    """Read a date or time by ISO 8601, which begins with the year, as days since 1970.

    A time without a zone is taken as UTC. Returns NaN if the value is missing, infinity
    if it is no such date: in 01/02/2024 nobody can tell the month.
    """
    if is_missing(cell):
        return math.nan
    if (match := _DAY.fullmatch(cell.removesuffix(" UTC"))) is None:
        return math.inf
    year, _, month, day, time, zone = match.groups()
    text = f"{year}-{month:0>2}-{day:0>2}" + (f"T{time}" if time else "")
    try:
        moment = datetime.fromisoformat(text + (zone or ""))
    except ValueError:
        return math.inf
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _DAY_0) / timedelta(days=1)


def is_compact_day(value: float) -> bool:
    """Whether a number is a date written without marks, as 20240131."""
    text = f"{value:.0f}"
    day = read_day(f"{text[:4]}-{text[4:6]}-{text[6:]}")
    return 1.9e7 < value < 2.1e7 and value == int(value) and math.isfinite(day)


def shape(cell: str) -> str:
    """Return a cell without what differs between numbers, dates or codes of one form.

    Digits become 0, letters a. Letters with digits behind them, as in A12 or shop_7,
    are a name, and stay.
    """
    if re.fullmatch(r"[^\W\d]+\d[\d.]*", cell):
        return cell
    return _LETTER.sub("a", re.sub(r"\d[\d.,\s]*", "0", cell))


def odd_one(names: Sequence[str]) -> str:
    """Return the only one of three names or more that is written otherwise; or "".

    That is the only text beside numbers, or the only one with other capitals, blanks or
    marks. Numbers themselves are looked at by ``Numbers.codes``.
    """
    forms = [
        () if _NUMERAL.fullmatch(n) else (n.islower(), n.isupper(), _LETTER.sub("", n))
        for n in names
    ]
    odd = [n for n, form in zip(names, forms, strict=True) if forms.count(form) == 1]
    return odd[0] if len(odd) == 1 and len(set(forms)) == 2 < len(forms) else ""


class Numbers:
    """Statistics of finite numbers.

    ``ends`` counts the smallest and the largest different values; no other single
    number is kept.
    """

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.count = len(values)
        with np.errstate(over="ignore", invalid="ignore"):
            self.mean = float(values.mean()) if self.count else 0.0
            self._squares = float(np.square(values - self.mean).sum())
        self.is_integer = bool((values == np.rint(values)).all())
        found, counts = np.unique(values, return_counts=True)
        places = np.arange(len(found))
        at = np.union1d(places[:_ENDS], places[-_ENDS:])
        self.ends = dict(zip(found[at].tolist(), counts[at].tolist(), strict=True))

    @property
    def std(self) -> float:
        """Standard deviation."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def codes(self, enough: int) -> dict[float, int]:
        """Count values apart from all others, each of which ``enough`` rows share.

        Of few whole numbers, these are outside of the longest run without a gap, which
        -1 does not begin. Else they are up to three at either end, two standard
        deviations of the others away, or the only negative ones.
        """
        is_short = self.is_integer and len(self.ends) < 2 * _ENDS
        found = self._beside_run() if is_short else {}
        for is_high in (False, True, False):
            ends = sorted(self.ends.items(), reverse=is_high)
            for at in range(1, min(_MOST_CODES + 1, len(ends) - 1)):
                (value, times), (then, _), (last, _) = ends[at - 1 : at + 2]
                gap, taken = abs(then - value), found | dict(ends[:at])
                if times < max(enough, 2) or len(ends) - len(taken) < 2:
                    break
                is_far = gap >= 2 * self._spread(taken) or value < 0 <= then
                if is_far and gap > 2 * abs(last - then):
                    found = taken
        return {v: n for v, n in found.items() if n >= max(enough, 2)}

    def _beside_run(self) -> dict[float, int]:
        """Return values that are not in the longest run of whole numbers."""
        runs: dict[float, list[float]] = {}
        for at, value in enumerate(sorted(self.ends)):
            runs.setdefault(value - at if value != -1 else math.inf, []).append(value)
        run = max(runs.values(), key=len, default=[])
        is_run = len(run) > 1 and 2 * len(run) >= len(self.ends)
        return {v: n for v, n in self.ends.items() if is_run and v not in run}

    def _spread(self, without: dict[float, int]) -> float:
        """Return the standard deviation of all but some values."""
        count = self.count - sum(without.values())
        gaps = [(value - self.mean, n) for value, n in without.items()]
        away = sum(gap * n for gap, n in gaps)
        squares = self._squares - sum(gap * gap * n for gap, n in gaps)
        return math.sqrt(max(squares - away * away / count, 0.0) / count)


@dataclass(frozen=True)
class Unknown:
    """Counts cells that may stand for "not known": marks in words, and numbers."""

    rows: int
    marks: Counter[str]
    numbers: Numbers

    @classmethod
    def of(
        cls, cells: Sequence[str], values: NDArray[np.float64] | None = None
    ) -> Unknown:
        """Count such cells, given their numbers if they are meant as such."""
        marks = {c for c in set(cells) if is_missing(c) and not is_empty(c)}
        found = np.zeros(0) if values is None else values[np.isfinite(values)]
        counts = Counter(filter(marks.__contains__, cells))
        return cls(len(cells), counts, Numbers(found))

    def notes(
        self,
        what: str,
        enough: int,
        *,
        listed: Collection[str] = (),
        shown: Callable[[float], str] = "{:.12g}".format,
    ) -> list[str]:
        """Name such cells with their share; not those that a schema lists."""
        marks = {repr(c): n for c, n in sorted(self.marks.items()) if c not in listed}
        codes = {shown(v): n for v, n in self.numbers.codes(enough).items()}
        kinds = (
            (marks, "not known (if one is a class or category, list it in the schema)"),
            (codes, "numbers, far from all others (empty them if they mean not known)"),
        )
        return [
            f"{what}: {n} of {self.rows} cells ({n / self.rows:.1%}) are {cell}, and"
            f" count as {text}"
            for found, text in kinds
            for cell, n in found.items()
        ]
