"""Sending messages to nodes, and waiting for their replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedgraph_flwr.stopping import check_stop

from .doubts import Doubts

_POLL_SHARE = 0.03  # waiting adds at most this share to a round ...
_POLL_S = (0.002, 1.0)  # ... within these bounds
_POLL_TIMES = 3  # as long as asking took is the next wait at least ...
_MOST_S = 0.25  # ... but for this reason it is no longer
_AGAIN_S = (0.05, 1.0)  # between two looks for what of a reply still arrives
_TICK_S = 0.11  # a little more than the period of Flower's dispatcher


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout_s: float,
    *,
    head_start_s: float = 0.0,
    meanwhile: Callable[[], None] = lambda: None,
    is_enough: Callable[[Iterable[Message]], bool] = lambda _: False,
    late_after_s: float = 0.0,
    doubts: Doubts | None = None,
) -> list[Message]:
    """Send messages and collect replies until all are in or the time is up.

    Flower's ``send_and_receive`` sleeps a fixed 0.1 s (simulation) or 3 s
    (deployment) between polls, which dominates short rounds.

    Parameters
    ----------
    grid : Grid
    messages : iterable of Message
    timeout_s : float
        Replies that come later are not waited for.
    head_start_s : float
        The first message goes out so much before the others, unless the grid answers
        each message before it takes the next.
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
    queue = every = list(messages)
    begin = time.monotonic()
    waiting: set[str] = set()
    if head_start_s and not getattr(grid, "ANSWERS_AT_ONCE", False):
        waiting |= {i for i in grid.push_messages(queue[:1]) if i}
        queue = queue[1:]
        time.sleep(head_start_s)
    waiting |= {i for i in grid.push_messages(queue) if i}
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
        if not waiting or elapsed > min(timeout_s, enough_at + late_after_s):
            break
        if waiting <= doubted and is_enough(replies):
            break
        time.sleep(pause_s(elapsed, asking_s))
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


def look_again_sooner() -> None:
    """Let this process wait less for the rest of a reply that has begun to arrive.

    Flower's server takes a reply as soon as its upload begins. What is not there yet
    it seeks again after 1 s, then after 2, 4, 8 and 10 s.
    """
    with suppress(ImportError, AttributeError):  # another Flower: its own waits
        grid: Any = import_module("flwr.superlink.grid.http_grid")
        first, longest = _AGAIN_S
        whole = import_module("flwr.supercore.inflatable.inflatable_utils")
        grid.pull_objects = partial(
            whole.pull_objects,
            initial_backoff=first,
            backoff_cap=longest,
            max_tries_per_object=None,  # more of them fit into the same time
        )


def head_start_s(loads: Iterable[float]) -> float:
    """Seconds by which the longest message should go out before the others.

    Flower's simulation hands out what is waiting every 0.1 s, in the order of its
    nodes and not of our messages. A node with as much work as all others together
    would otherwise start last.

    Parameters
    ----------
    loads : iterable of float
        Seconds of work of each node, as far as known.
    """
    longest, second = [*sorted(loads, reverse=True), 0.0, 0.0][:2]
    decides = second > 0 and longest > max(2 * second, 3 * _TICK_S)
    return _TICK_S if decides else 0.0
