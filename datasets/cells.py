"""What the text of a cell may mean, whatever program wrote it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation

# Cyrillic and Greek letters that look like Latin ones, and these.
_TWINS = str.maketrans("авекмнорстухіјѕαβεηικνορτυχ", "abekmhopctyxijsabehikvoptyx")


def alike(name: str) -> Decimal | str:
    """Return what names share that look the same, or are the same number.

    Forms of Unicode, capitals, white space, dashes, letters without a picture, and
    those of other scripts make no difference; nor do 7, 7.0 and 007.
    """
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


def twin(cell: str, looks: Mapping[Decimal | str, str]) -> str:
    """Name the one of ``by_look`` that looks like a cell, for a message; or ""."""
    found = looks.get(alike(cell), cell)
    return "" if found == cell else f" ({found!a} looks alike, {cell!a} is not it)"
