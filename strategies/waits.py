"""Flower's waits between server and nodes, and how this process shortens them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from logging import WARNING
from typing import Any

from flwr.common.logger import log

_AGAIN_S = (0.05, 1.0)  # between two looks for what of a reply still arrives
_HAND_OUT_S = 0.11  # for messages to be handed out, at most
_LOOK_S = 0.1  # between two looks for replies of which we are told, at least


class Simulation:
    """Flower's simulation in this process, if it runs: who waits for messages is told.

    A thread of Flower's looks for messages every 0.1 s, for those of each node in turn,
    and hands them to actors. Another one keeps their replies, which our server would
    have to look for.
    """

    def __init__(self) -> None:
        self._sent, self._handed_out = threading.Event(), threading.Event()
        self._replied = threading.Event()
        self.hands_out = self.keeps_replies = False  # while these threads run

    def hand_out(self) -> None:
        """Have it hand out what has been sent, if it runs."""
        if self.hands_out:
            self._handed_out.clear()
            self._sent.set()
            self._handed_out.wait(_HAND_OUT_S)

    def wait_for_reply(self, pause_s: float, left_s: float) -> None:
        """Wait for ``pause_s``; or if it runs, for a reply.

        If none comes that takes ``pause_s`` too, or 0.1 s if it is less, but not more
        than ``left_s``.
        """
        if self.keeps_replies:
            self._replied.wait(min(max(pause_s, _LOOK_S), left_s))
            self._replied.clear()
        else:
            time.sleep(pause_s)

    def run_hander(self, loop: Callable[..., None], *given: Any) -> None:
        """Be the thread that hands out messages.

        Parameters
        ----------
        loop : callable
            Flower's own.
        given
            Its arguments, the last of which is the event that ends the simulation.
        """
        *others, stop = given

        def wait(timeout: float) -> bool:
            if not self._sent.is_set():
                self._handed_out.set()
                self._sent.wait(timeout)
            self._sent.clear()
            return bool(stop.is_set())

        self.hands_out = True
        try:
            loop(*others, Changed(stop, wait=wait))
        finally:
            self.hands_out = False
            self._handed_out.set()

    def run_keeper(self, loop: Callable[..., None], state: Any, *given: Any) -> None:
        """Be the thread that keeps replies in ``state``, by Flower's own loop."""

        def store(reply: Any) -> Any:
            try:
                return state.store_message_res(reply)
            finally:
                self._replied.set()

        self.keeps_replies = True
        try:
            loop(Changed(state, store_message_res=store), *given)
        finally:
            self.keeps_replies = False


class Changed:
    """An object with another method in place of one of its own."""

    def __init__(self, of: Any, **changed: Callable[..., Any]) -> None:
        self._of = of
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


simulation = Simulation()


def shorten_waits() -> None:
    """Let Flower wait less in this process, before it begins to.

    Flower's server takes a reply as soon as its upload begins. What is not there yet
    it seeks again after 1 s, then after 2, 4, 8 and 10 s. Threads of its simulation
    start when Ray has, while a ServerApp is imported at once.
    """
    try:
        grid: Any = import_module("flwr.superlink.grid.http_grid")
        first, longest = _AGAIN_S
        whole = import_module("flwr.supercore.inflatable.inflatable_utils")
        grid.pull_objects = partial(
            whole.pull_objects,
            initial_backoff=first,
            backoff_cap=longest,
            max_tries_per_object=None,  # more of them fit into the same time
        )
    except (ImportError, AttributeError) as error:
        log(WARNING, "another Flower: it waits longer for replies (%s)", error)
    engine: Any = sys.modules.get("flwr.server.superlink.fleet.vce.vce_api")
    threads = {
        "add_messages_to_queue": simulation.run_hander,
        "put_message_into_state": simulation.run_keeper,
    }
    for name, ours in threads.items():
        loop = getattr(engine, name, None)
        if loop is not None and not isinstance(loop, partial):
            setattr(engine, name, partial(ours, loop))
