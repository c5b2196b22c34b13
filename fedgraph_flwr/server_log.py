"""The server's audit log: what it asked of sites, and what they sent, by its own count.

It is ``audit.jsonl`` beside the results folders, one for all runs. Only nodes that keep
an audit log of their own are in it, so that a simulation writes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid
from typing_extensions import override

from .audit_log import AuditLog, code_hash, digests
from .audit_words import name_message, now, read_leniently, record_bytes, round_of
from .entries import ASKED
from .errors import FedGraphError, StorageError
from .wire import AUDIT_HEAD
from .wording import shortened

RUN, RECEIVED, ENDED = "run", "received", "ended"  # events, beside ASKED


class AuditedGrid(Grid):
    """A Grid that writes down what goes to sites and what comes from them.

    Parameters
    ----------
    grid : Grid
        Sends and receives.
    log : AuditLog
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
        asked = [m for m in messages if m.metadata.dst_node_id in self._sites]
        self._write([{"event": ASKED, **self._about(m)} for m in asked])
        ids = list(self._grid.push_messages(messages))
        self._open |= {i: m for i, m in zip(ids, messages, strict=True) if i}
        return ids

    @override
    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        self._write(
            line
            for reply in replies
            if (asked := self._open.pop(reply.metadata.reply_to_message_id, None))
            and (line := self._received(asked, reply))
        )
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
        lines = [{"time_utc": now(), "run": self._run, **r} for r in records]
        if not lines:
            return ""
        if not self._has_begun:
            self._has_begun = True
            begun = {"event": RUN, "code_sha256": code_hash(), **self._facts}
            lines = [{"time_utc": now(), "run": self._run, **begun}, *lines]
        return self._log.add(lines)

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

    def _received(self, asked: Message, reply: Message) -> dict[str, Any] | None:
        """Line of a reply; None if it is that of a node without an audit log."""
        about = self._about(asked)
        line = {"event": RECEIVED, "node": about["node"], "message": about["message"]}
        line |= {k: about[k] for k in ("round",) if k in about}
        if reply.has_error():
            if about["node"] not in self._sites:
                return None
            return {**line, "error": shortened(str(reply.error.reason))}
        header = read_leniently(reply.content)
        head = header.get(AUDIT_HEAD)
        if not isinstance(head, str):
            return None
        self._sites.add(about["node"])
        if "error" in header:
            line["error"] = shortened(str(header["error"]))
        sizes = record_bytes(reply.content)
        try:
            hashes = digests(reply.content, of=self._clients)
        except FedGraphError:  # malformed: the strategy says so of its clients
            hashes = {}
        return {
            **line,
            "head": shortened(head),
            "sent": {
                str(c): {"bytes": sum(sizes[c].values()), "sha256": h}
                for c, h in hashes.items()
            },
        }
