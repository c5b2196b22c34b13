"""What the text of a cell may mean, whatever program wrote it."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation

# Cyrillic and Greek letters that look like Latin ones, and these.
_TWINS = str.maketrans("авекмнорстухіјѕαβεηικνορτυχ", "abekmhopctyxijsabehikvoptyx")
_WORDS = (
    "na|n/a|n.a.|n.a|n/d|n.d.|nan|-nan|null|none|nil|unknown|unk|missing|undefined"
    "|undetermined|unspecified|unlabeled|unlabelled|not available|not known|no data"
    "|not applicable|not specified|not reported|not recorded|unbekannt|keine angabe"
    "|k.a.|inconnu|desconocido|sconosciuto|tbd|nat|\\n|?|??|-|--|---|–|—|.|..|..."
    "|value!|ref!|div/0!|num!|name?|1.#qnan|1.#ind|-1.#ind|0000-00-00"
    "|0000-00-00 00:00:00"
)
_MARKS = frozenset(_WORDS.split("|"))
TRUTH = {"true": 1.0, "false": 0.0}
_NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
LIMITS = "<>=~≤≥≈"
_ROUGHLY = re.compile(r"\D{0,6}\d[\d.,'’`´\s_]*(?:[eE][-+−]?\d+)?\D{0,6}")  # a number
_LONG = 40  # letters; numbers and dates have fewer
_CODES = (
    r"(?:EUR|USD|GBP|CHF|JPY|CNY|INR|AUD|CAD|SEK|NOK|DKK|PLN|CZK|HUF|RUB|BRL|MXN|ZAR|TRY"
    r"|kr|Kč|zł|Ft|S?Fr|Rs)\.?"
)
_CURRENCY = re.compile(
    r"[A-Z]{0,2}[$€£¥¢₩₽₹₪₫₴₦₱₺฿₡₲₵₸₿]"
    rf"|^{_CODES}(?= ?[-+(]?[\d.,])|(?<=[\d.,)-]) ?{_CODES}$"
)
_POINT, _COMMA = (  # by the mark before the decimals
    re.compile(
        rf"(?:([1-9]\d{{0,2}}([ '_{other}])(?:\d{{2,3}}\2)*\d{{3}})|(\d*))"
        rf"((?:[{mark}]\d*)?(?:[eE][-+]?\d{{1,3}})?)"
    )
    for mark, other in (".,", ",.")
)
_DAY = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[Tt ] *(\S+?) ?([-+]\S+)?)?")
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?"
_MONTH = r"(?:jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz])[a-zä]*\.?"
_CLOCK = rf"{_TIME}(?: ?[ap]\.?m\.?)?(?: ?(?:[a-z]{{1,4}}|[-+]\d\d:?\d\d))?"
_DATED = re.compile(
    rf"[12]\d{{3}}([-/.])\d{{1,2}}\1\d{{1,2}}(?:\D.*)?|[12]\d{{3}}-W?\d\d(?:-.*)?"
    rf"|(?:\d{{1,2}}([-/.])\d{{1,2}}\2(?:\d\d|[12]\d{{3}})"
    rf"|\d{{1,2}}\.?[- ]?{_MONTH}[- ,]*(?:\d\d|\d{{4}})|{_MONTH} ?\d{{1,2}},? \d{{4}}"
    rf"|{_MONTH}[- ]\d{{4}})(?:[T ,]+{_CLOCK})?|{_CLOCK}",
    re.IGNORECASE,
)
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

    "Na" is none: it is sodium.
    """
    if is_empty(cell):
        return True
    text = cell.lower().strip("()<>[]{}#").replace("_", " ")
    return text in _MARKS and cell != "Na"


def as_whole(cell: str) -> str:
    """Return a truth value as 0 or 1, and 1.0 as 1; other texts as they are.

    Columns of whole numbers become 1.0 in many programs if a cell is empty.
    """
    if cell.lower() in TRUTH:
        return f"{TRUTH[cell.lower()]:.0f}"
    return cell[:-2] if cell.endswith(".0") and _NUMERAL.fullmatch(cell) else cell


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
    text = _CURRENCY.sub("", text.rstrip("%‰ "))
    text = re.sub(r"[.,]-+$", "", text.strip())  # as in "5.-"
    sign = "-" if text[:1] in ("-", "(") or text[-1:] == "-" else ""
    text = text.strip("-() ").removeprefix("+")
    found: dict[Decimal, str] = {}
    for form in (_POINT, _COMMA):
        match = form.fullmatch(text)
        if match is None or not re.match(r"[.,]?\d", text):
            continue
        whole = re.sub(r"\D", "", match[1] or match[3] or "")
        number = f"{sign}{whole or 0}{match[4].replace(',', '.')}"
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


def form_of(cell: str) -> str:
    """Return what a cell that is no number looks like.

    "date" can be read; "day" is a date or time in another form; "number" is meant as
    one; "points" is one with points between thousands; "" is any other text.
    """
    if len(cell) > _LONG or not re.search(r"\d", cell):
        return ""
    if math.isfinite(read_day(cell)):
        return "date"
    if _DATED.fullmatch(cell):
        return "day"
    if cell[0] in LIMITS or not _ROUGHLY.fullmatch(cell) or not readings(cell):
        return ""
    return "points" if re.search(r"\d\.\d{3}[.,]", cell) else "number"
