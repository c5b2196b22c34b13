"""Charts as inline SVG. Every text is escaped; colours are the page's (class names)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ..results.reader import Partition

NUM_COLOURS = 7
_WIDTH, _HEIGHT = 520, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 12, 40
MOST_BARS = 60  # clients of a chart that has a row for each
_MOST_MARKS = 600  # values of one line; more cannot be told apart


@dataclass(frozen=True)
class Line:
    """One line of a chart: (x, y) ascending in x, and the class of its colour."""

    label: str
    points: Sequence[tuple[float, float]]
    style: str


def colour(k: int) -> str:
    """Class of the k-th colour, and of its dashes after the last colour."""
    return f"c{k % NUM_COLOURS} d{k // NUM_COLOURS % 3}"


def line_chart(
    lines: Sequence[Line],
    *,
    name: str,
    y_label: str,
    marks: Sequence[int] = (),
    from_zero: bool = False,
) -> Markup:
    """Draw lines over rounds; ``marks`` are rounds with a vertical line.

    Returns
    -------
    Markup
        An ``svg`` element; empty if there is no value.
    """
    values = [p for line in lines for p in line.points]
    if not values:
        return Markup("")
    xs, ys = [x for x, _ in values], [y for _, y in values]
    x_ticks = _ticks(min(xs), max(xs), whole=True)
    y_ticks = _ticks(min(0.0, *ys) if from_zero else min(ys), max(ys))
    low_x, high_x = min(xs), max(max(xs), min(xs) + 1)
    low_y, high_y = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def at_x(x: float) -> float:
        return _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        share = (y - low_y) / (high_y - low_y or 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        Markup('<path class="grid" d="M{} {:.1f}H{}"/>').format(
            _LEFT, at_y(t), _WIDTH - _RIGHT
        )
        + _text(_LEFT - 6, at_y(t) + 4, f"{t:.6g}", "end")
        for t in y_ticks
    ]
    parts += [
        _text(at_x(t), _HEIGHT - _BOTTOM + 17, f"{t:.0f}")
        for t in x_ticks
        if low_x <= t <= high_x
    ]
    parts += [
        Markup('<path class="mark" d="M{:.1f} {}V{}"/>').format(
            at_x(t), _TOP, _HEIGHT - _BOTTOM
        )
        for t in marks
        if low_x <= t <= high_x
    ]
    for line in lines:
        placed = [(at_x(x), at_y(y)) for x, y in _thinned(line.points)]
        if len(placed) == 1:  # a path of one point is invisible
            ((x, y),) = placed
            placed = [(x - 2, y), (x + 2, y)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        parts.append(
            Markup('<path class="line {}" d="M{}"><title>{}</title></path>').format(
                line.style, path, line.label
            )
        )
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, "round"))
    parts.append(_upwards((_HEIGHT - _BOTTOM) / 2, y_label))
    return _svg(parts, name=name, height=_HEIGHT)


def cluster_chart(partitions: Mapping[int, Partition], *, name: str) -> Markup:
    """Draw which cluster each client is in, round by round; empty if always one.

    Rows are clients, by their last cluster; of more than 60 only the first.
    """
    if max((len(p) for p in partitions.values()), default=0) < 2:
        return Markup("")
    rounds = sorted(partitions)
    member_of = {
        t: {c: k for k, members in enumerate(partitions[t]) for c in members}
        for t in rounds
    }
    last = member_of[rounds[-1]]
    clients = sorted(
        {c for of in member_of.values() for c in of},
        key=lambda c: (last.get(c, len(last)), c),
    )[:MOST_BARS]
    row_height, width = 16, (_WIDTH - _LEFT - _RIGHT) / len(rounds)
    parts = []
    for row, client in enumerate(clients):
        y = _TOP + row * row_height
        parts.append(_text(_LEFT - 6, y + 12, str(client), "end"))
        clusters = [member_of[t].get(client) for t in rounds]
        for cluster, span in itertools.groupby(
            range(len(rounds)), key=clusters.__getitem__
        ):
            if cluster is None:
                continue
            places = list(span)
            x = _LEFT + places[0] * width
            first, last_one = rounds[places[0]], rounds[places[-1]]
            words = f"client {client}: cluster {cluster}, rounds {first} to {last_one}"
            box = x, y + 1, len(places) * width, row_height - 2
            parts.append(_box(f"cell {colour(cluster)}", box, words))
            if len(places) * width > 14:
                parts.append(_text(x + 4, y + 12, str(cluster), "start", "inside"))
    bottom = _TOP + len(clients) * row_height
    for t in _ticks(rounds[0], rounds[-1], whole=True):
        if rounds[0] <= t <= rounds[-1]:
            share = (t - rounds[0] + 0.5) / (rounds[-1] - rounds[0] + 1)
            x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
            parts.append(_text(x, bottom + 16, f"{t:.0f}"))
    parts.append(_text((_LEFT + _WIDTH) / 2, bottom + 34, "round"))
    parts.append(_upwards(f"{(_TOP + bottom) / 2:.0f}", "client"))
    return _svg(parts, name=name, height=bottom + 40)


def bar_chart(
    values: Mapping[int, float],
    *,
    name: str,
    unit: str,
    as_text: Callable[[float], str],
) -> Markup:
    """Draw a bar for each client, to the right if > 0; of many the extreme 60."""
    order = sorted(values, key=lambda c: (-values[c], c))
    if len(order) > MOST_BARS:
        order = [*order[: MOST_BARS // 2], *order[-MOST_BARS // 2 :]]
    if not order:
        return Markup("")
    row_height, label_room = 18, 60
    reach = max(max(abs(values[c]) for c in order), 1e-12)
    middle = (_LEFT + _WIDTH) / 2
    scale = (_WIDTH - middle - _RIGHT - label_room) / reach
    bottom = _TOP + row_height * len(order)
    parts = [Markup('<path class="zero" d="M{} {}V{}"/>').format(middle, _TOP, bottom)]
    for row, client in enumerate(order):
        value, y = values[client], _TOP + row * row_height
        length = abs(value) * scale
        words = as_text(value)
        style = "gain" if value > 0 else "loss"
        x = middle if value > 0 else middle - length
        box = x, y + 2, length, row_height - 4
        parts.append(_box(style, box, f"client {client}: {words} {unit}"))
        end = middle + length + 5 if value > 0 else middle - length - 5
        parts.append(_text(end, y + 13, words, "start" if value > 0 else "end"))
        parts.append(_text(_LEFT - 6, y + 13, str(client), "end"))
    parts.append(_text(middle, bottom + 20, unit))
    parts.append(_upwards(f"{(_TOP + bottom) / 2:.0f}", "client"))
    return _svg(parts, name=name, height=bottom + 28)


def _svg(parts: Sequence[Markup], *, name: str, height: float) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        _WIDTH, height, name
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def _box(style: str, box: tuple[float, int, float, int], words: str) -> Markup:
    """Draw a rectangle (x, y, width, height), which says ``words`` to a pointer."""
    return Markup(
        '<rect class="{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
        "<title>{}</title></rect>"
    ).format(style, *box, words)


def _text(
    x: float, y: float, words: str, anchor: str = "middle", style: str = ""
) -> Markup:
    kind = Markup(' class="{}"').format(style) if style else Markup("")
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>').format(
        x, y, anchor, kind, words
    )


def _upwards(y: object, words: str) -> Markup:
    """Name what goes upwards, at the left edge."""
    return Markup(
        '<text text-anchor="middle" transform="translate(13 {}) rotate(-90)">{}</text>'
    ).format(y, words)


def _ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About five round numbers from at or below ``low`` to at or above ``high``."""
    span = (high - low) or abs(high) or 1.0
    power = 10 ** math.floor(math.log10(span / 4))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= span / 5)
    step = max(1.0, round(step)) if whole else step
    first = math.floor(low / step)
    last = next(i for i in itertools.count(first) if i * step >= high - step * 1e-9)
    return [i * step for i in range(first, last + 1)]


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Every n-th point, and the last."""
    every = math.ceil(len(points) / _MOST_MARKS)
    kept = list(points[::every])
    return kept if kept[-1:] == list(points[-1:]) else [*kept, points[-1]]
