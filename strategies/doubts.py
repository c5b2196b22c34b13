"""Nodes that missed a deadline: they are asked again, but nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from flwr.app import RecordDict
from flwr.serverapp import Grid

from .replies import Expected, misfit, read_reply


class Doubts:
    """Nodes that no round waits for, until one of their replies is good and in time.

    Each of them has at most one message at a time to answer. That it answers a roll
    call, or quickly sends something malformed, does not show that it can train in time:
    else it would cost every round, or every second one, the whole timeout.

    Parameters
    ----------
    timeout_s : float
        Seconds after which a reply is too late for any round.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: dict[int, int] = {}  # node -> the round whose deadline it missed
        # By message: its node, when it was sent, and what its clients had to send.
        self._unanswered: dict[str, tuple[int, float, Mapping[int, Expected]]] = {}

    def add(
        self,
        node: int,
        server_round: int,
        key: str,
        sent_at: float,
        expected: Mapping[int, Expected],
    ) -> None:
        """Doubt a node, and keep looking for its reply to the message ``key``."""
        self._since.setdefault(node, server_round)
        self._unanswered[key] = node, sent_at, expected

    def end(self, node: int) -> None:
        """Wait for a node again: a good reply of it was in time."""
        self._since.pop(node, None)

    def since(self, node: int) -> int | None:
        """Round whose deadline a node missed; None if it is not doubted."""
        return self._since.get(node)

    def busy(self) -> set[int]:
        """Nodes that still have a message to answer."""
        return {node for node, *_ in self._unanswered.values()}

    def keep(self, online: Collection[int]) -> None:
        """Forget nodes that have left: who comes back may have been mended."""
        self._since = {n: r for n, r in self._since.items() if n in online}
        self._unanswered = {k: v for k, v in self._unanswered.items() if v[0] in online}

    def look(self, grid: Grid) -> None:
        """Take in replies that missed their round; nothing that they hold is used."""
        if not self._unanswered:
            return
        oldest = time.monotonic() - self._timeout_s
        for reply in grid.pull_messages(list(self._unanswered)):
            found = self._unanswered.pop(reply.metadata.reply_to_message_id, None)
            if found is None or found[1] < oldest or reply.has_error():
                continue
            if _holds_good(reply.content, found[2]):
                self.end(found[0])
        self._unanswered = {k: v for k, v in self._unanswered.items() if v[1] >= oldest}


def _holds_good(content: RecordDict, expected: Mapping[int, Expected]) -> bool:
    parcels = read_reply(content, expected)
    return any(not (p.error or misfit(p, expected[c])) for c, p in parcels.items())
