"""Numbers to predict, scaled by numbers that all sites share (``csv-label-scale``).

Models learn numbers of about 1. Targets stay in the units of the files everywhere
else: in labels, scores and predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import GraphPartition, Scale
from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.rules import shown
from fedgraph_flwr.core.words import shortened

from .catalog import is_users, label_kind
from .molecules import warn_once
from .tabular.cells import MIN_COUNT, codes

KEY = "csv-label-scale"
FAR = 10.0  # how many times larger or smaller than 1, or than another, is too far
_FEWEST = 3  # labels, to tell a spread from


def check_scales(settings: RunSettings) -> None:
    """Refuse scales of targets that are wrong, or of labels that are no numbers."""
    if _read(settings.csv_label_scale) and label_kind(settings) != "regression":
        raise ConfigError(
            f"{KEY} scales numbers to predict, but labels of dataset"
            f" {settings.dataset!r} are no numbers in this run; leave it empty, or set"
            " csv-label-kind to 'regression' if they are"
        )


def target_scales(settings: RunSettings, tasks: Sequence[str]) -> tuple[Scale, ...]:
    """Mean and spread of each task as the run says; empty if it says none."""
    given = _read(settings.csv_label_scale)
    if unknown := [name for name in given if name not in tasks]:
        raise ConfigError(
            f"{KEY} names {', '.join(map(repr, unknown))}, but targets are"
            f" {shortened(', '.join(map(repr, tasks)))}; correct it in the run config"
        )
    return tuple(given.get(task, (0.0, 1.0)) for task in tasks) if given else ()


def _read(text: str) -> dict[str, Scale]:
    """Read ``"logD=2.4:1.4,IC50=690000:1500000"``."""
    found: dict[str, Scale] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, numbers = part.rpartition("=")
        mean, _, spread = numbers.rpartition(":")
        try:
            pair = float(mean or "0"), float(spread)
        except ValueError:
            pair = math.nan, math.nan
        name = name.strip()
        if not (name and all(map(math.isfinite, pair)) and pair[1] > 0):
            raise ConfigError(
                f"{KEY} must be COLUMN=MEAN:SPREAD for each column to scale, separated"
                f" by commas, with a spread > 0, as in 'logD=2.4:1.4', got"
                f" {shown(part)}; correct it in the run config"
            )
        if name in found:
            raise ConfigError(f"{KEY} names column {name!r} twice; delete one of them")
        found[name] = pair
    return found


def scaled(partition: GraphPartition, settings: RunSettings) -> GraphPartition:
    """Add the run's scales to a client's data; warn if targets are far from 1."""
    if label_kind(settings) != "regression":
        return partition
    partition = replace(partition, scales=target_scales(settings, partition.tasks))
    if not is_users(settings):
        return partition
    y = partition.targets()[partition.train].astype(np.float64)
    found: dict[str, Scale] = {}
    for task, column in zip(partition.tasks, y.T, strict=True):
        known = column[~np.isnan(column)]
        known = known[~np.isin(known, [*codes(known, MIN_COUNT)])]  # without -999
        if len(known) >= _FEWEST:
            found[task] = float(known.mean()), float(known.std())
    if words := describe_far(found):
        cure = (
            "are its values in the units of the other sites? Else correct the scale"
            if partition.scales
            else "models learn such numbers badly, and the larger ones alone: scale"
            f' them alike at all sites, as by {KEY}="{suggest(found)}"; scores and'
            " predictions keep the units of the files"
        )
        warn_once(
            f"client {partition.client_id}: {'scaled ' * bool(partition.scales)}targets"
            f" are far from mean 0 and spread 1, or from each other: {words}; {cure}"
        )
    return partition


def describe_far(found: Mapping[str, Scale]) -> str:
    """Say mean and spread of each target; "" if all are near 0 and 1."""
    spreads = [spread for _, spread in found.values()]
    is_far = any(
        abs(mean) > FAR or not 1 / FAR <= spread <= FAR
        for mean, spread in found.values()
    )
    if not is_far and max(spreads, default=1) <= FAR * min(spreads, default=1):
        return ""
    words = [f"{t} has mean {m:.3g}, spread {s:.3g}" for t, (m, s) in found.items()]
    return shortened(", ".join(words), 500)


def suggest(found: Mapping[str, Scale]) -> str:
    """Word means and spreads as ``csv-label-scale``, to two digits of the spread."""
    words = []
    for task, (mean, spread) in found.items():
        place = 1 - math.floor(math.log10(spread)) if spread else 15
        rounded = float(f"{spread or 1.0:.2g}")
        words.append(f"{task}={round(mean, place):.15g}:{rounded:.15g}")
    return ",".join(words)
