"""Short words for long texts and many clients."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

SITE_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
SITE_NAME_WORDS = (
    "1 to 40 letters, digits, '.', '_' and '-', the first a letter or a digit"
)
BY_HAND = "stopped by Ctrl-C, SIGTERM or a closed terminal"
_MOST_LETTERS = 200
_UNNAMED: Mapping[int, str] = MappingProxyType({})


def is_site_name(name: str) -> bool:
    """Whether a text may name a site: it can break no line, table or label."""
    return bool(re.fullmatch(SITE_NAME, name))


def clients_by_site(sites: Mapping[int, str]) -> dict[str, list[int]]:
    """Clients of each site that has a name; sites and clients ascending."""
    names = sorted(set(sites.values()))
    return {name: [c for c, s in sorted(sites.items()) if s == name] for name in names}


def with_sites(words: str, clients: Iterable[int], sites: Mapping[int, str]) -> str:
    """Add the names of the clients' sites: ``"clients 0-2 (north, south)"``."""
    names = sorted({sites[c] for c in clients if sites.get(c)})
    return f"{words} ({', '.join(names)})" if names else words


def at_most(bound: float, digits: int = 4) -> str:
    """Write a bound with so many digits, rounded up."""
    if not 0 < bound < math.inf:
        return f"{bound:g}"
    bound = max(bound, 1e-300)  # whoever tells less: steps of it would be 0
    # Sums of equal numbers may be a hair off.
    step = 10.0 ** (math.floor(math.log10(bound)) - digits + 1)
    return f"{math.ceil(bound * (1 - 1e-9) / step) * step:.{digits}g}"


def client_ranges(clients: Iterable[int]) -> str:
    """Write client ids shortly: ``[0, 1, 2, 5]`` becomes ``"0-2, 5"``."""
    runs: list[list[int]] = []
    for c in sorted(clients):
        if runs and c == runs[-1][-1] + 1:
            runs[-1].append(c)
        else:
            runs.append([c])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)


def group_reasons(reasons: Mapping[int, str]) -> list[tuple[list[int], str]]:
    """Put clients with the same reason together, in the order of their first client.

    Reasons are the same if they differ in the client's own number alone, as in the
    path of its folder; of a group that number becomes ``*``.

    Parameters
    ----------
    reasons : mapping
        Client -> why it failed.
    """
    groups: dict[str, list[int]] = {}
    for client, reason in sorted(reasons.items()):
        pattern = rf"\bclient([- ]){client}\b"
        groups.setdefault(re.sub(pattern, r"client\1*", reason), []).append(client)
    return [
        (clients, reasons[clients[0]] if len(clients) == 1 else reason)
        for reason, clients in groups.items()
    ]


def tell_reasons(
    reasons: Mapping[int, str], sites: Mapping[int, str] = _UNNAMED
) -> str:
    """Write ``"client 3 (north): why; clients 0-2, 5: why"``.

    Parameters
    ----------
    reasons : mapping
        Client -> why it failed.
    sites : mapping
        Client -> name of its site, as far as sites have names.
    """
    return "; ".join(
        f"{with_sites(name_clients(clients), clients, sites)}: {reason}"
        for clients, reason in group_reasons(reasons)
    )


def name_clients(clients: Collection[int]) -> str:
    """Write ``"client 3"`` or ``"clients 0-2, 5"``; of a long list its beginning."""
    ranges = client_ranges(clients)
    if len(ranges) > _MOST_LETTERS:
        begin = ranges[:_MOST_LETTERS].rpartition(", ")[0]
        ranges = f"{begin}, ... ({len(clients)} clients)"
    return f"client{'s' * (len(clients) > 1)} {ranges}"


def shortened(value: object, length: int = _MOST_LETTERS) -> str:
    """Text of a value from another party, on one line and cut short, to be shown."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= length:
        return visible(text)
    return f"{visible(text[:length])} ... ({len(text)} characters)"


def harmless(text: str) -> str:
    """Lines as they are, without what would command a terminal."""
    return "\n".join(map(visible, text.split("\n")))


def visible(text: str) -> str:
    r"""Write what breaks lines or commands a terminal as in Python: ``"\n"``."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else repr(c)[1:-1]
        for c in text
    )


def duration(seconds: float) -> str:
    """Write seconds as ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def score_text(value: float | None, digits: int = 4) -> str:
    """Write a score with so many decimals, none as "-"; no small error becomes 0."""
    if value is None:
        return "-"
    is_lost = 1e-12 < abs(value) < 10.0**-digits
    return f"{value:.2e}" if is_lost else f"{value:.{digits}f}"
