"""What the cells of a column mean: numbers, dates, names, nothing that is known."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

MIN_COUNT = 10  # graphs or nodes, for a category to be named

_NOT_KNOWN = re.compile(  # without punctuation and blanks
    r"na|nana|nan(?:ind)?|null|nat|nd|missing|blank|1(?:qnan|ind)|(?:un|not?)"
    r"(?:known|labell?ed|determined|specified|defined|classified|assigned|available"
    r"|provided|reported|recorded|applicable|data|answer|value)"
)
_NO_TEXT = re.compile(r"[-–—.?…'/\\]+|\\N|<?None>?|0000-00-00.*")
TRUTH = {"true": 1.0, "false": 0.0}
_NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_PLAIN = re.compile(r"[-+]?\d*[.,]?\d+")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}[.,]\d{3}")  # or decimals
_MOST = 0.9  # of the cells of a column of numbers are numbers
LIMITS = "<>=~≤≥≈"
_DAY = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[Tt ] *(\S+?) ?([-+]\S+)?)?")
_DAY_0 = datetime(1970, 1, 1, tzinfo=UTC)


def alike(name: str) -> Decimal | str:
    """Return what names share that look the same, or are the same number.

    Forms of Unicode, capitals, white space, dashes and letters without a picture make
    no difference; nor do 7, 7.0 and 007.
    """
    if name.isascii() and name.isprintable() and name[:1].isalpha():  # of most ids
        return " ".join(name.casefold().split())
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    kinds = ((c, unicodedata.category(c)) for c in text)
    text = "".join("-" if k == "Pd" else c for c, k in kinds if k not in ("Cf", "Cc"))
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
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

    Marks between thousands, a decimal comma, signs of limits, currencies and per cents
    are read. A cell that means no number has none; "3,633" has two.
    """
    text = unicodedata.normalize("NFKC", cell).strip().lstrip(LIMITS + " ")
    text = re.sub(r"(?<=\d)[ '’_](?=\d{3})", "", text.replace("−", "-"))
    text = re.sub(r"^(-?)[$€£¥]|[$€£¥%]$", r"\1", text).replace(" ", "")
    found: dict[Decimal, str] = {}
    for mark, other in (".,", ",."):  # the mark before decimals
        whole = rf"(?:[1-9]\d{{0,2}}(?:\{other}\d{{3}})+|\d*)"
        rest = rf"(?:\{mark}\d*)?(?:[eE][-+]?\d{{1,3}})?"
        if re.fullmatch(rf"[-+]?(?=[.,]?\d){whole}{rest}", text):
            number = text.replace(other, "").replace(mark, ".")
            found.setdefault(Decimal(number), number)
    return tuple(found.values())


def with_points(
    columns: dict[str, list[str]],
) -> tuple[list[str], tuple[int, str, str] | None]:
    """Write decimal commas of columns of numbers as points, in place.

    Only for files whose cells no comma separates. At least nine of ten cells of a
    column of numbers are numbers; in others commas stay.

    Returns
    -------
    changed : list of str
        Names of the columns with decimal commas.
    flaw : (int, str, str) or None
        Row, column and words of a cell that could mean something else: 1.234,56, or 2.5
        beside 2,5; or 3,633 if no number of the file tells that its comma is decimal.
    """
    found, points = dict[str, list[str]](), dict[str, list[str]]()
    for name, cells in columns.items():
        if not any("," in c or "." in c for c in cells):
            continue
        given = [c for c in {*cells} if not is_missing(c)]
        are = {c: bool(_PLAIN.fullmatch(c) or readings(c)) for c in given}
        known = [c for c in cells if c in are]
        numbers = [c for c in known if are[c]]
        if len(numbers) >= _MOST * len(known):
            (found if any("," in c for c in numbers) else points)[name] = numbers
    for name, numbers in found.items():
        for cell in numbers:
            if "." in cell or cell.count(",") > 1:
                text = f"got {cell!r}, beside decimal commas; write decimals with one"
                text += " mark in all rows, and nothing between thousands"
                return [], (columns[name].index(cell), name, text)
    commas = [c for numbers in found.values() for c in numbers if "," in c]
    are_known = not all(map(_THOUSANDS.fullmatch, commas))
    for name, numbers in points.items() if are_known else found.items():
        marked = [c for c in numbers if "." in c or "," in c]
        if all(map(_THOUSANDS.fullmatch, marked)):
            text = (
                f"{marked[0]!r} may mean thousands or decimals, beside decimal commas"
            )
            if not are_known:
                text = f"{marked[0]!r} may mean {' or '.join(readings(marked[0]))}"
            text += "; write nothing between thousands, and a point before decimals"
            return [], (columns[name].index(marked[0]), name, text)
    for name in found:
        columns[name] = [
            c.replace(",", ".") if _COMMA.fullmatch(c) else c for c in columns[name]
        ]
    return list(found), None


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


@np.errstate(over="ignore", invalid="ignore")
def codes(values: NDArray[np.float64], enough: int) -> dict[float, int]:
    """Count values far from all others that ``enough`` rows share, as -999 and 9999.

    Such a value is the smallest or the largest. It lies two standard deviations of the
    others away, and farther than these are from each other; or it alone is negative.
    """
    told: dict[float, int] = {}
    for at, then, last in ((0, 1, 2), (-1, -2, -3), (0, 1, 2)):
        found, counts = np.unique(values, return_counts=True)
        if len(found) < 3 or counts[at] < max(enough, 2):
            continue
        others = values[values != found[at]]
        gap, next_gap = abs(found[then] - found[at]), abs(found[last] - found[then])
        is_far = gap >= 2 * others.std() and gap > 2 * next_gap
        if is_far or (found[at] == -1 and found[then] >= 0):
            told[float(found[at])] = int(counts[at])
            values = others
    return dict(sorted(told.items()))


def not_known(
    what: str,
    cells: Sequence[str],
    enough: int,
    *,
    numbers: NDArray[np.float64] | None = None,
    listed: Collection[str] = (),
    shown: Callable[[float], str] = "{:.12g}".format,
) -> list[str]:
    """Name cells of ``what`` that may mean "not known", with their share.

    These are marks in words that a schema does not list, and ``codes`` of numbers.
    """
    marks = {c for c in set(cells) if is_missing(c) and not is_empty(c)} - {*listed}
    rows = Counter(filter(marks.__contains__, cells))
    text = "not known (if one is a class or category, list it in the schema)"
    told = [(repr(cell), rows[cell], text) for cell in sorted(marks)]
    if numbers is not None:
        text = "numbers, far from all others (empty them if they mean not known)"
        found = codes(numbers[np.isfinite(numbers)], enough)
        told += [(shown(value), count, text) for value, count in found.items()]
    return [
        f"{what}: {n} of {len(cells)} cells ({n / len(cells):.1%}) are {cell}, and"
        f" count as {text}"
        for cell, n, text in told
    ]
