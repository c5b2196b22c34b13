"""Sending messages to nodes and waiting for replies."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from logging import WARNING
from threading import Event
from typing import Any, cast

import httpx
from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedgraph_flwr.core import flower_names
from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.flower_names import simulation
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.process import check_stop, memory

_POLL_SHARE = 0.03  # waiting adds at most this share to a round ...
_POLL_S = (0.002, 1.0)  # ... within these bounds
_POLL_TIMES = 3  # as long as asking took is the next wait at least ...
_MOST_S = 0.25  # ... but for this reason it is no longer
_MOST = 32  # replies that are fetched at a time
_USUAL_S = 1.0  # in which a reply is mostly there
_SHARE = 8  # part of the memory that a reply may take; to read it takes more
_UNAVAILABLE = 3  # Flower's error code of a reply that could not be fetched


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout_s: float,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    is_enough: Callable[[Iterable[Message]], bool] = lambda _: False,
    late_after_s: float = 0.0,
) -> list[Message]:
    """Send messages and collect replies until all are in or the time is up.

    Flower's ``send_and_receive`` sleeps a fixed 0.1 s (simulation) or 3 s (deployment)
    between polls, which dominates short rounds. Returns replies in the order in which
    they came.

    Parameters
    ----------
    timeout_s : float
        Replies that come later are not waited for.
    meanwhile : callable
        Called once, when all messages are out.
    is_enough : callable
        Given the replies so far, says whether a round could end with them.
    late_after_s : float
        Seconds that are left for the other replies then; 0: until ``timeout_s``.

    Raises
    ------
    RunFailedError
        The run was stopped through Flower.
    """
    every = list(messages)
    begin = time.monotonic()
    waiting = {i for i in grid.push_messages(every) if i}
    simulation.wake()
    meanwhile()
    replies: list[Message] = []
    enough_at = math.inf  # seconds since the beginning
    while waiting:
        check_stop()
        asked = time.monotonic()
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
        simulation.wait(pause_s(elapsed, asking_s), left_s)
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
    """
    rest_s = min(_POLL_TIMES * asking_s, _MOST_S)
    return min(max(_POLL_SHARE * waited_s, _POLL_S[0], rest_s), longest_s)


@contextmanager
def side_by_side(grid: Grid) -> Iterator[Grid]:
    """Give a Grid that fetches each reply in a thread of its own.

    Flower fetches replies one after the other, each as soon as its upload begins. A
    node that stops in the middle, as when it is killed, would delay all others for
    minutes. One whose bytes are no message, or are more than fit into the memory, would
    end the run. Here each of these is an error of its node. Flower's simulation has
    replies in its own memory; its Grid stays as it is.
    """
    if not flower_names.fetches_over_http(grid):
        yield grid
        return
    begun: dict[str, Future[Message | None]] = {}  # by id of the message sent
    sent: dict[str, Message] = {}
    is_over, threads = Event(), ThreadPoolExecutor(_MOST, "reply")

    def push(messages: Iterable[Message]) -> list[str]:
        every = list(messages)
        ids = list(grid.push_messages(every))
        sent.update((i, m) for i, m in zip(ids, every, strict=True) if i)
        return ids

    def pull(message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        new = {i: threads.submit(fetch, i) for i in wanted - begun.keys()}
        begun.update(new)
        wait(new.values(), _USUAL_S)
        done = [i for i, fetched in begun.items() if i in wanted and fetched.done()]
        replies = {i: begun.pop(i).result() for i in done}
        for i in (i for i, reply in replies.items() if reply):
            sent.pop(i, None)
        return [reply for reply in replies.values() if reply]

    def fetch(asked: str) -> Message | None:
        most, size = memory() // _SHARE, 0

        def check(more: int) -> None:
            nonlocal size
            size += more
            if is_over.is_set():
                raise WireError("the run is over")
            if size > most:
                raise WireError(
                    f"it has more than {most} bytes, the {_SHARE}th part of the"
                    " server's memory"
                )

        flower_names.fetching.check = check
        try:
            for reply in grid.pull_messages([asked]):
                if reply.metadata.reply_to_message_id != asked:
                    raise WireError("inside it says that it answers another message")
                return reply
        except httpx.HTTPError:  # the SuperLink's own
            raise
        except Exception as error:  # whatever strange bytes make Flower raise
            reason = f"its reply cannot be read: {type(error).__name__}: {error}"
            return Message(Error(_UNAVAILABLE, reason), reply_to=sent[asked])
        return None

    changed: Any = flower_names.Changed(grid, push_messages=push, pull_messages=pull)
    try:
        yield cast("Grid", changed)
    finally:  # nothing more is fetched, so that nothing holds up the end of the process
        is_over.set()
        threads.shutdown(wait=False, cancel_futures=True)
