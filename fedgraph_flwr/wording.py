"""Short words for many clients."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


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


def tell_reasons(reasons: Mapping[int, str]) -> str:
    """Write ``"client 3: why; clients 0-2, 5: why"``."""
    return "; ".join(
        f"client{'s' * (len(clients) > 1)} {client_ranges(clients)}: {reason}"
        for clients, reason in group_reasons(reasons)
    )
