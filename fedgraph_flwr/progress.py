"""Writes what a finished round leaves: rows, a checkpoint, a line of progress."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from logging import INFO
from statistics import fmean

from flwr.common.logger import log

from strategies.base import AbstractGraphStrategy
from strategies.report import RoundReport

from .results.folder import RunFolder
from .results.network import describe_seal
from .trackers import Tracking
from .wording import duration, with_sites

_LOSS = ("train", "loss")


class RoundWriter:
    """Writes each round to the results folder when the strategy reports it.

    Parameters
    ----------
    folder : RunFolder
    tracking : Tracking
    """

    def __init__(self, folder: RunFolder, tracking: Tracking) -> None:
        self._folder, self._tracking = folder, tracking
        self._clock = Clock(folder.resolved.settings.num_server_rounds)

    def __call__(self, strategy: AbstractGraphStrategy, report: RoundReport) -> None:
        """Write a round; a complete one gets a line and, if it is due, a checkpoint."""
        settings = self._folder.resolved.settings
        is_kept = settings.is_checkpoint(report.server_round, strategy.last_round)
        self._folder.record(report if is_kept else replace(report, arrays={}))
        strategy.lives = self._folder.lives
        self._folder.meter(strategy)
        if report.is_complete:
            if is_kept:
                self._folder.checkpoint(strategy)
            line = progress_line(self._folder, report, self._clock, strategy.sites)
            network = strategy.network()
            seal = describe_seal(network.is_sealed if network else None)
            log(INFO, "%s", " · ".join(filter(None, [line, seal])))
        self._tracking.add(report)


class Clock:
    """Estimates the time left from the seconds of this process's rounds.

    The first of them starts processes and fills caches, and shows no pace: nothing is
    said after it.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._seconds: list[float] = []

    def left(self, done: int, wall_s: float) -> str:
        """Remaining time; "" if it is not known.

        ``done`` is the round just completed, ``wall_s`` its seconds.
        """
        self._seconds.append(wall_s)
        if len(self._seconds) < 2:
            return ""
        return duration(fmean(self._seconds[1:]) * (self._total - done))


def progress_line(
    folder: RunFolder, report: RoundReport, clock: Clock, sites: Mapping[int, str]
) -> str:
    """Say the round, score, loss, clusters, time left, and who failed.

    The score is of the last model that was measured: the one received, or an older one.
    """
    done, task = report.server_round, folder.so_far.task
    settings = folder.resolved.settings
    parts = [f"round {done}/{settings.num_server_rounds}"]
    measured = (done - 1) // settings.evaluate_every * settings.evaluate_every
    means = {split: folder.so_far.mean_score(split, measured) for split in task.splits}
    if not any(map(math.isnan, means.values())):
        words = " ".join(f"{split} {mean:.3f}" for split, mean in means.items())
        parts.append(f"{task.metric} after round {measured}: {words}")
    if (by := folder.so_far.by) and not math.isnan(
        chosen := folder.so_far.mean_score("val" + by, measured)
    ):
        parts.append(f"{folder.so_far.chosen_by()} val {chosen:.3f}")
    losses = [e.value for e in report.evaluations if (e.split, e.metric) == _LOSS]
    if losses:
        parts.append(f"training loss {fmean(losses):.3f}")
    if len(report.facts["clusters"]) > 1:
        parts.append(f"clusters {len(report.facts['clusters'])}")
    if left := clock.left(done, report.wall_s):
        parts.append(f"{left} left")
    if report.failures:
        words = f"{len(report.failures)} failed"
        parts.append(with_sites(words, report.failures, sites))
    return " · ".join(parts)
