"""Sending messages to nodes, and waiting for their replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.stopping import check_stop

from .doubts import Doubts
from .waits import simulation

_POLL_SHARE = 0.03  # waiting adds at most this share to a round ...
_POLL_S = (0.002, 1.0)  # ... within these bounds
_POLL_TIMES = 3  # as long as asking took is the next wait at least ...
_MOST_S = 0.25  # ... but for this reason it is no longer


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout_s: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    is_enough: Callable[[Iterable[Message]], bool] = lambda _: False,
    late_after_s: float = 0.0,
    doubts: Doubts | None = None,
) -> list[Message]:
    """Send messages and collect replies until all are in or the time is up.

    Flower's ``send_and_receive`` sleeps a fixed 0.1 s (simulation) or 3 s
    (deployment) between polls, which dominates short rounds. The first message is
    handed out first, though Flower's simulation goes by the order of its nodes.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    timeout_s : float
        Replies that come later are not waited for.
    meanwhile : callable
        Called once, when all messages are out.
    is_enough : callable
        Given the replies so far, says whether a round could end with them.
    late_after_s : float
        Seconds that are left for the other replies then; 0: until ``timeout_s``.
    doubts : Doubts, optional
        Nodes whose replies are waited for only while the others' are not enough.

    Returns
    -------
    list of Message
        Replies in the order in which they came.

    Raises
    ------
    RunFailedError
        The run was stopped through Flower.
    """
    every = list(messages)
    begin = time.monotonic()
    waiting: set[str] = set()
    ahead = 1 if simulation.hands_out else 0
    for some in filter(None, (every[:ahead], every[ahead:])):
        waiting |= {i for i in grid.push_messages(some) if i}
        simulation.hand_out()
    meanwhile()
    doubted = {
        m.metadata.message_id
        for m in every
        if doubts is not None and doubts.since(m.metadata.dst_node_id) is not None
    }
    replies: list[Message] = []
    enough_at = math.inf  # seconds since the beginning
    while waiting:
        check_stop()
        asked = time.monotonic()
        if doubts is not None:
            doubts.look(grid)
        pulled = list(grid.pull_messages(list(waiting)))
        asking_s = 0.0 if pulled else time.monotonic() - asked
        for reply in pulled:
            if (answered := reply.metadata.reply_to_message_id) not in waiting:
                log(
                    WARNING,
                    "ignored a reply to message %r: nothing waits for it",
                    answered,
                )
                continue
            waiting.discard(answered)
            replies.append(reply)
        elapsed = time.monotonic() - begin
        if late_after_s and math.isinf(enough_at) and is_enough(replies):
            enough_at = elapsed
        left_s = min(timeout_s, enough_at + late_after_s) - elapsed
        if not waiting or left_s < 0:
            break
        if waiting <= doubted and is_enough(replies):
            break
        simulation.wait_for_reply(pause_s(elapsed, asking_s), left_s)
    return replies


def pause_s(
    waited_s: float, asking_s: float = 0.0, *, longest_s: float = _POLL_S[1]
) -> float:
    """Seconds to wait before nodes are looked after again.

    Parameters
    ----------
    waited_s : float
        So far.
    asking_s : float
        Of the last look, if it found nothing.
    longest_s : float
    """
    rest_s = min(_POLL_TIMES * asking_s, _MOST_S)
    return min(max(_POLL_SHARE * waited_s, _POLL_S[0], rest_s), longest_s)
