"""Replies are fetched from Flower side by side: none holds up or spoils another.

Flower tells of a reply as soon as its upload begins, and then fetches one after the
other. A node that stops in the middle, as when it is killed, would let all others wait
for minutes, however short a round may be. One whose bytes are no message would end the
run, and what was fetched with it would be lost. One without end would fill the memory.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from threading import Event
from typing import Any, cast

from flwr.app import Error, Message, Metadata
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedgraph_flwr.errors import WireError
from fedgraph_flwr.kept import memory

from .waits import Changed

_MOST = 32  # replies that are fetched at a time
_USUAL_S = 1.0  # in which a reply is mostly there
_SHARE = 8  # part of the memory that a reply may take; to read it takes more


@contextmanager
def side_by_side(grid: Grid) -> Iterator[Grid]:
    """Give a Grid that fetches each reply by itself.

    Flower's simulation has replies in its own memory; its Grid stays as it is.
    """
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    if not isinstance(grid, getattr(module, "HttpGrid", ())):
        yield grid
        return
    replies = Replies(grid)
    try:
        yield cast("Grid", Changed(grid, pull_messages=replies.pull))
    finally:
        replies.close()


class Replies:
    """Replies to messages of a server, each of which is fetched in a thread.

    Parameters
    ----------
    grid : HttpGrid
        Flower's.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._threads = ThreadPoolExecutor(_MOST, "reply")
        self._begun: dict[str, Future[Message]] = {}  # by id of the message
        self._is_over = Event()

    def pull(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies that are there; each once, in the order of their beginning.

        One that cannot be fetched is an error of its node.
        """
        wanted = set(message_ids)
        begun = [self._begin(*told) for told in self._ask(wanted - self._begun.keys())]
        wait(begun, _USUAL_S)
        done = [i for i, f in self._begun.items() if i in wanted and f.done()]
        return [self._begun.pop(i).result() for i in done]

    def close(self) -> None:
        """Fetch nothing more, so that nothing holds up the end of the process."""
        self._is_over.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, message_ids: set[str]) -> Iterator[tuple[Any, Any]]:
        """Ask Flower for replies: for what it says of each, and its parts' ids.

        It forgets a reply of which it has told, so nobody may ask again.
        """
        if not message_ids:
            return iter(())
        proto: Any = import_module("flwr.proto.runtime_pb2")
        asked = proto.PullAppMessagesRequest(message_ids=sorted(message_ids))
        told = self._grid._runtime_client.PullMessages(asked)
        return zip(told.messages_list, told.message_object_trees, strict=True)

    def _begin(self, about: Any, parts: Any) -> Future[Message]:
        begun = self._threads.submit(self._fetch, about, parts)
        self._begun[about.metadata.reply_to_message_id] = begun
        return begun

    def _fetch(self, about: Any, parts: Any) -> Message:
        """Let Flower fetch one reply, as if it had been told of this one alone."""
        client, grid = self._grid._runtime_client, copy.copy(self._grid)
        proto: Any = import_module("flwr.proto.runtime_pb2")
        told = proto.PullAppMessagesResponse(
            messages_list=[about], message_object_trees=[parts]
        )

        most, size = memory() // _SHARE, 0

        def pull_object(asked: Any) -> Any:
            nonlocal size
            if self._is_over.is_set():
                raise WireError("the run is over")
            found = client.PullObject(asked)
            size += len(found.object_content)
            if size > most:
                raise WireError(
                    f"it has more than {most} bytes, the {_SHARE}th part of the"
                    " server's memory"
                )
            return found

        grid._client = Changed(
            client, PullMessages=lambda _: told, PullObject=pull_object
        )
        answered = about.metadata.reply_to_message_id
        try:
            (reply,) = grid.pull_messages([answered])
            if reply.metadata.reply_to_message_id != answered:  # that of its envelope
                raise WireError("inside it says that it answers another message")
        except Exception as error:  # whatever strange bytes make Flower raise
            reason = f"its reply cannot be read: {type(error).__name__}: {error}"
            return _error(about.metadata, reason)
        return cast("Message", reply)


def _error(told: Any, reason: str) -> Message:
    """Make the reply of a node whose own cannot be used, as Flower does."""
    message: Any = import_module("flwr.app.message")
    metadata = Metadata(
        run_id=told.run_id,
        message_id="",
        src_node_id=told.src_node_id,
        dst_node_id=told.dst_node_id,
        reply_to_message_id=told.reply_to_message_id,
        group_id="",
        created_at=told.created_at,
        ttl=told.ttl,
        message_type=told.message_type,
    )
    error = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason)
    return cast("Message", message.make_message(metadata=metadata, error=error))
