"""The line that a run prints after every round."""

from __future__ import annotations

import math
import time
from statistics import fmean

from strategies.report import RoundReport

from .results.folder import RunFolder

_LOSS = ("train", "loss")


class Clock:
    """Estimates the time left from the pace of the rounds so far.

    The first round loads data and starts processes. It counts only until a second one
    shows the pace.
    """

    def __init__(self, done: int, total: int) -> None:
        self._since, self._done, self._total = time.monotonic(), done, total
        self._is_first = True

    def left(self, done: int) -> str:
        """Remaining time as ``m:ss`` after round ``done``."""
        now = time.monotonic()
        pace = (now - self._since) / max(1, done - self._done)
        if self._is_first:
            self._since, self._done, self._is_first = now, done, False
        seconds = round(pace * (self._total - done))
        return f"{seconds // 60}:{seconds % 60:02d}"


def progress_line(
    folder: RunFolder, report: RoundReport, clock: Clock, num_rounds: int
) -> str:
    """Round, score, loss, clusters, time left.

    The score is of the last model that was measured: the one received, or an older one.
    """
    done, task = report.server_round, folder.so_far.task
    parts = [f"round {done}/{num_rounds}"]
    every = folder.resolved.settings.evaluate_every
    measured = (done - 1) // every * every
    means = {split: folder.so_far.mean_score(split, measured) for split in task.splits}
    if not any(map(math.isnan, means.values())):
        words = " ".join(f"{split} {mean:.3f}" for split, mean in means.items())
        parts.append(f"{task.metric} after round {measured}: {words}")
    losses = [e.value for e in report.evaluations if (e.split, e.metric) == _LOSS]
    if losses:
        parts.append(f"training loss {fmean(losses):.3f}")
    if len(report.facts["clusters"]) > 1:
        parts.append(f"clusters {len(report.facts['clusters'])}")
    parts.append(f"{clock.left(done)} left")
    if report.failures:
        parts.append(f"{len(report.failures)} failed")
    return " · ".join(parts)
