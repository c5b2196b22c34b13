"""``statistics.csv``: statistics of their graphs that clients sent before training."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

import numpy as np
from rich.console import Console
from rich.table import Table

from datasets.target_scale import FAR, KEY, describe_far, suggest
from strategies.report import ClientInfo

from ..likeness import MOST_TARGETS, TELLS, Statistics

STATISTICS = "statistics.csv"
_LISTS = {"counts": "count", "target_mean": "mean", "target_std": "std"}
_APART = 3.0  # spreads, from which units may differ
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


def unlike_targets(clients: Mapping[int, ClientInfo], *, is_scaled: bool) -> list[str]:
    """Say which targets have other units at some clients, or should be scaled.

    Only clients that told their statistics are compared. ``is_scaled`` says whether
    there is a scale for all sites already.
    """
    told = {c: Statistics.from_json(i.told.get(TELLS, "")) for c, i in clients.items()}
    tasks = clients[min(clients)].tasks
    lines, pooled = [], {}
    for k, task in enumerate(tasks[:MOST_TARGETS]):
        known = {
            c: (max(s.num_graphs, 1), *pair)
            for c, s in sorted(told.items())
            if s
            for pair in [*zip(s.target_mean, s.target_std, strict=False)][k : k + 1]
            if math.isfinite(sum(pair))
        }
        sizes = {c: math.hypot(mean, std) for c, (_, mean, std) in known.items()}
        if not sizes:
            continue
        low = min(sizes, key=lambda c: sizes[c])
        high = max(sizes, key=lambda c: sizes[c])
        weights, means, stds = zip(*known.values(), strict=True)
        odd, apart = max(_apart(known), key=lambda pair: pair[1])
        found = ""
        if sizes[high] > FAR * sizes[low]:
            found = f"are about {sizes[high]:.2g} at client {high} and"
            found += f" {sizes[low]:.2g} at client {low}"
        elif apart > _APART:
            found = (
                f"of client {odd} have mean {known[odd][1]:.3g}, far from the others'"
            )
        if found:
            lines.append(
                f"values of {task} {found}: if units, scales or signs differ, write one"
                " at all sites"
            )
        mean = float(np.average(means, weights=weights))
        around = np.square(np.subtract(means, mean)) + np.square(stds)
        pooled[task] = mean, math.sqrt(float(np.average(around, weights=weights)))
    if not is_scaled and (words := describe_far(pooled)):
        lines.append(
            f"over clients {words}: models learn such numbers badly, scale them by"
            f' {KEY}="{suggest(pooled)}"'
        )
    return lines


def _apart(
    known: Mapping[int, tuple[int, float, float]],
) -> Iterator[tuple[int, float]]:
    """Yield each client, and how many spreads its mean lies from the others' mean.

    Means of unlike sign, both further from 0 than their spread, lie infinitely far.
    """
    for client, (_, mean, std) in known.items():
        rest = [row for other, row in known.items() if other != client]
        if not rest:
            yield client, 0.0
            continue
        weights, means, stds = np.array(rest).T
        center = float(np.average(means, weights=weights))
        spread = math.sqrt(float(np.average(np.square(stds), weights=weights)))
        gap = abs(mean - center)
        is_turned = mean * center < 0 and abs(mean) > std and abs(center) > spread
        yield client, math.inf if is_turned else 2 * gap / (std + spread or 1e-300)


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
