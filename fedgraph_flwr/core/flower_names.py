"""Private names of Flower: those that this project uses stand here, and nowhere else.

Flower may rename them in any version. What needs one then goes on without it, and one
line in the log says what is lost. A test imports each name.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from logging import WARNING
from types import ModuleType
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from .logs import log

_LEAST_S = 0.1  # between two looks for replies of a simulation, which wake us
# Between two looks for the rest of a reply, first and longest; Flower's: 1 and 10 s.
_AGAIN_S = {"initial_backoff": 0.05, "backoff_cap": 1.0}
# What `check` of a thread raises ends its fetching. It gets the bytes of each part.
fetching = threading.local()


@contextmanager
def _or_without(lost: str) -> Iterator[None]:
    """Go on if a name has gone, with a line in the log that says what is lost."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        log(WARNING, "another Flower than this code knows: %s (%s)", lost, error)


def at_exit(handler: Callable[[], None]) -> None:
    """Call a function before Flower ends this process, however it ends it."""
    with _or_without("a run that is stopped writes no summary"):
        from flwr.supercore.exit import add_exit_handler

        add_exit_handler(handler, run_before_force_exit=True)


def exit_process() -> None:
    """End this process as Flower does when it is asked to end, with what is left."""
    from flwr.supercore.exit import ExitCode, flwr_exit

    flwr_exit(ExitCode.GRACEFUL_EXIT_SIGTERM)


def pose_as_task(run_id: int) -> None:
    """Let messages be made in this process, which no Flower has started."""
    with _or_without("messages may be refused"):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1


def name_message(message: Message) -> str:
    """Give a message an id, as Flower's Grid does when it sends one; return it."""
    message.metadata.__dict__["_message_id"] = found = secrets.token_hex(16)
    return found


def sign_on(superlink: str, key: Any, *, insecure: bool, roots: str | None) -> Any:
    """Sign on as the SuperNode with this key (``EllipticCurvePrivateKey``), and off.

    Returns None if it is admitted, else the ``httpx.Response`` that refuses it. An
    ImportError means that a name has gone, and nobody can tell.
    """
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    public = key.public_key()
    signed: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperNode")]
    signed.append(NodeAuthHttpInterceptor(key, public))
    asked = ActivateNodeRequest(
        public_key=public_key_to_bytes(public), heartbeat_interval=30.0
    )
    with FleetHttpClient.from_server_address(
        superlink, insecure, roots, interceptors=signed
    ) as client:
        try:
            node = client.ActivateNode(asked).node_id
        except httpx.HTTPStatusError as error:
            return error.response
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    return None


class Changed:
    """An object with other methods in place of some of its own."""

    def __init__(self, of: Any, **changed: Callable[..., Any]) -> None:
        self._of = of
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class Simulation:
    """Flower's simulation in this process, if it runs.

    One of its threads looks for messages every 0.1 s and hands them to actors. Another
    one keeps their replies.
    """

    def __init__(self) -> None:
        self.runs = False
        self._sent, self._replied = threading.Event(), threading.Event()

    def wake(self) -> None:
        """Have it hand out what has been sent."""
        self._sent.set()

    def wait(self, pause_s: float, left_s: float) -> None:
        """Wait for a reply of the simulation; without one, for ``pause_s``."""
        if self.runs:
            self._replied.wait(min(max(pause_s, _LEAST_S), left_s))
            self._replied.clear()
        else:
            time.sleep(pause_s)

    def hand_out(self, loop: Callable[..., None], *given: Any) -> None:
        """Be the thread that hands out messages; Flower's own ends with its event."""
        *others, stop = given

        def wait(timeout: float) -> bool:
            self._sent.wait(timeout)
            self._sent.clear()
            return bool(stop.is_set())

        loop(*others, Changed(stop, wait=wait))

    def keep(self, loop: Callable[..., None], state: Any, *given: Any) -> None:
        """Be the thread that keeps replies in ``state``."""

        def store(reply: Any) -> Any:
            try:
                return state.store_message_res(reply)
            finally:
                self._replied.set()

        self.runs = True
        try:
            loop(Changed(state, store_message_res=store), *given)
        finally:
            self.runs = False


simulation = Simulation()


def shorten_waits() -> None:
    """Let Flower wait less in this process, before a simulation starts its threads."""
    with _or_without("it waits longer for the rest of a reply, however large"):
        from flwr.superlink.grid import http_grid

        _replace(http_grid, "pull_objects", _pull_objects)
    if engine := sys.modules.get("flwr.server.superlink.fleet.vce.vce_api"):
        with _or_without("rounds of a simulation take 0.1 s more"):
            _replace(engine, "add_messages_to_queue", simulation.hand_out)
            _replace(engine, "put_message_into_state", simulation.keep)


def _replace(module: ModuleType, name: str, ours: Callable[..., Any]) -> None:
    flowers = getattr(module, name)
    if not isinstance(flowers, partial):
        setattr(module, name, partial(ours, flowers))


def _pull_objects(
    flowers: Callable[..., Any], object_ids: Any, pull_object_fn: Callable[[str], bytes]
) -> Any:
    check: Callable[[int], object] = getattr(fetching, "check", int)

    def checked(part: str) -> bytes:
        check(0)  # before each look for a part, too
        content = pull_object_fn(part)
        check(len(content))
        return content

    return flowers(object_ids, checked, max_tries_per_object=None, **_AGAIN_S)


def fetches_over_http(grid: Grid) -> bool:
    """Whether a Grid fetches replies of sites, one after the other."""
    module = sys.modules.get("flwr.superlink.grid.http_grid")
    return isinstance(grid, getattr(module, "HttpGrid", ()))
