"""``statistics.csv``: statistics of their graphs that clients sent before training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from strategies.report import ClientInfo

from ..likeness import TELLS, Statistics

STATISTICS = "statistics.csv"
_LISTS = {"counts": "count", "target_mean": "mean", "target_std": "std"}
_NUMBERS = [f.name for f in fields(Statistics) if f.name not in _LISTS]


def statistics_rows(clients: Mapping[int, ClientInfo]) -> list[list[str]]:
    """Make the table: a line of names, and one per client, empty if it sent nothing."""
    found = sorted(clients.items())
    told = {c: Statistics.from_json(i.told.get(TELLS, "")) for c, i in found}
    widths = {
        name: max((len(getattr(s, name)) for s in told.values() if s), default=0)
        for name in _LISTS
    }
    header = ["client", *_NUMBERS]
    for name, word in _LISTS.items():
        header += [f"{word}_{k}" for k in range(widths[name])]
    rows = [header]
    for client, one in told.items():
        row = [str(client)]
        if one is not None:
            row += [_shown(getattr(one, name)) for name in _NUMBERS]
            for name, width in widths.items():
                values = [_shown(value) for value in getattr(one, name)]
                row += [*values, *[""] * (width - len(values))]
        rows.append(row + [""] * (len(header) - len(row)))
    return rows


def _shown(value: float) -> str:
    return "" if value != value else f"{value:g}" if value < 1e6 else str(value)


def statistics_table(rows: Sequence[Sequence[str]]) -> str:
    """Lay the rows out for the log; a client that sent nothing has dashes."""
    table = Table(title="what clients told of their graphs")
    kept = [i for i in range(len(rows[0])) if i == 0 or any(r[i] for r in rows[1:])]
    for i in kept:
        table.add_column(rows[0][i].replace("_", " "))
    for row in rows[1:]:
        table.add_row(*(row[i] or "-" for i in kept))
    text = io.StringIO()
    Console(file=text, width=120).print(table)
    return text.getvalue().rstrip()
