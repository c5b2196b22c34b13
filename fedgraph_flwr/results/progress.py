"""Writes what a finished round leaves: rows, a checkpoint, progress, the audit log.

It is ``audit.jsonl`` beside the results folders, one for all runs. Only nodes that keep
an audit log of their own are in it, so that a simulation writes none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from statistics import fmean
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from typing_extensions import override

from strategies.base import AbstractGraphStrategy
from strategies.round_report import RoundReport

from ..core.audit_log import (
    ASKED,
    AuditLog,
    code_hash,
    digests,
    name_message,
    now,
    read_leniently,
    record_bytes,
    round_of,
)
from ..core.errors import FedGraphError, StorageError
from ..core.logs import log
from ..core.wire import AUDIT_HEAD
from ..core.words import duration, shortened, with_sites
from .folder import RunFolder
from .printed import describe_seal
from .trackers import Tracking

_LOSS = ("train", "loss")


class RoundWriter:
    """Writes each round to the results folder when the strategy reports it."""

    def __init__(self, folder: RunFolder, tracking: Tracking) -> None:
        self._folder, self._tracking = folder, tracking
        self._clock = Clock(folder.resolved.settings.num_server_rounds)

    def __call__(self, strategy: AbstractGraphStrategy, report: RoundReport) -> None:
        """Write a round; a complete one gets a line and, if it is due, a checkpoint."""
        settings = self._folder.resolved.settings
        is_kept = settings.is_checkpoint(report.server_round, strategy.last_round)
        kept = strategy if is_kept and report.is_complete else None
        self._folder.record(report if is_kept else replace(report, arrays={}), kept)
        strategy.lives = self._folder.lives
        self._folder.meter(strategy)
        if report.is_complete:
            line = progress_line(self._folder, report, self._clock, strategy.sites)
            if network := strategy.network():
                words = describe_seal(network.is_sealed)
                line += f" · {words}" if words else ""
            log(INFO, "%s", line)
        if self._tracking.is_on:
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
    so_far, settings = folder.so_far, folder.resolved.settings
    done, task = report.server_round, so_far.task
    parts = [f"round {done}/{settings.num_server_rounds}"]
    measured = (done - 1) // settings.evaluate_every * settings.evaluate_every
    means = {s: so_far.mean_score(measured, split=s) for s in task.splits}
    if not any(map(math.isnan, means.values())):
        words = " ".join(f"{split} {mean:.3f}" for split, mean in means.items())
        parts.append(f"{task.metric} after round {measured}: {words}")
    chosen = so_far.mean_score(measured, so_far.by, "val")
    if so_far.by and not math.isnan(chosen):
        parts.append(f"{so_far.by} val {chosen:.3f}")
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


RUN, RECEIVED, ENDED = "run", "received", "ended"  # events, beside ASKED


class AuditedGrid(Grid):
    """A Grid that writes down what goes to sites and what comes from them.

    Parameters
    ----------
    grid : Grid
        Sends and receives.
    run : int
        Flower's number of the run.
    num_clients : int
        Of the run. Of others, which a node may name without end, nothing is written.
    facts : mapping
        Further entries of the run's first line, e.g. the hash of its configuration.
    """

    def __init__(
        self,
        grid: Grid,
        log: AuditLog,
        *,
        run: int,
        num_clients: int,
        facts: Mapping[str, Any],
    ) -> None:
        self._grid, self._log, self._run, self._facts = grid, log, run, facts
        self._clients = range(num_clients)
        self._open: dict[str, Message] = {}  # by id, until it is answered
        self._sites: set[int] = set()  # nodes that told the head of a log
        self._has_begun = False

    @override
    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    @override
    def run(self) -> Any:
        return self._grid.run

    @override
    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self._grid.create_message(*args, **kwargs)

    @override
    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    @override
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        if asked := [m for m in messages if m.metadata.dst_node_id in self._sites]:
            self._write([{"event": ASKED, **self._about(m)} for m in asked])
        ids = list(self._grid.push_messages(messages))
        self._open |= {i: m for i, m in zip(ids, messages, strict=True) if i}
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        lines = []
        for reply in replies:
            asked = self._open.pop(reply.metadata.reply_to_message_id, None)
            if asked and self._is_of_site(asked.metadata.dst_node_id, reply):
                lines.append(self._received(asked, reply))
        if lines:
            self._write(lines)
        return replies

    @override
    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Refuse: what is sent so would not be written down."""
        raise NotImplementedError("messages of a run are pushed and pulled")

    def end(self, outcome: str, note: str = "") -> str:
        """Write the run's last line and return the head; "" if it had no sites.

        Where it cannot be written a warning says so: how the run ended stays as it is.
        """
        if not self._has_begun:
            return ""
        try:
            return self._write([{"event": ENDED, "outcome": outcome, "note": note}])
        except StorageError as error:
            log(WARNING, "that this run ended is not written down: %s", error)
            return ""

    def _write(self, records: Iterable[Mapping[str, Any]]) -> str:
        if not self._has_begun:
            self._has_begun = True
            begun = {"event": RUN, "code_sha256": code_hash(), **self._facts}
            records = [begun, *records]
        of_all = {"time_utc": now(), "run": self._run}
        return self._log.add({**of_all, **r} for r in records)

    def _about(self, message: Message) -> dict[str, Any]:
        kind = message.metadata.message_type
        header, sizes = read_leniently(message.content), record_bytes(message.content)
        found = {
            "node": message.metadata.dst_node_id,
            "message": name_message(kind),
            "round": round_of(header),
            "clients": sorted(set(sizes) - {-1}),
            "bytes": sum(sum(records.values()) for records in sizes.values()),
        }
        return {k: v for k, v in found.items() if v is not None}

    def _is_of_site(self, node: int, reply: Message) -> bool:
        """Whether a node keeps an audit log: its replies tell the head of it."""
        if reply.has_error():
            return node in self._sites
        head = read_leniently(reply.content).get(AUDIT_HEAD)
        if is_site := isinstance(head, str):
            self._sites.add(node)
        return is_site

    def _received(self, asked: Message, reply: Message) -> dict[str, Any]:
        about = self._about(asked)
        line = {"event": RECEIVED}
        line |= {k: about[k] for k in ("node", "message", "round") if k in about}
        if reply.has_error():
            return {**line, "error": shortened(str(reply.error.reason))}
        header = read_leniently(reply.content)
        if "error" in header:
            line["error"] = shortened(str(header["error"]))
        sizes = record_bytes(reply.content)
        try:
            hashes = digests(reply.content, of=self._clients)
        except FedGraphError:  # malformed: the strategy says so of its clients
            hashes = {}
        return {
            **line,
            "head": shortened(header[AUDIT_HEAD]),
            "sent": {
                str(c): {"bytes": sum(sizes[c].values()), "sha256": h}
                for c, h in hashes.items()
            },
        }
