"""Flower's waits between server and nodes, and how this process shortens them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_AGAIN_S = (0.05, 1.0)  # between two looks for what of a reply still arrives
_TICK_S = 0.11  # a little more than the period of Flower's dispatcher


class Simulation:
    """Flower's simulation in this process, if it runs: who waits for messages is told.

    A thread of Flower's looks for messages every 0.1 s, for those of each node in turn,
    and hands them to actors. Another one keeps their replies, which our server would
    have to look for.
    """

    def __init__(self) -> None:
        self._sent, self._handed_out = threading.Event(), threading.Event()
        self._replied = threading.Event()
        self.runs = self._keeps = False

    def hand_out(self) -> None:
        """Have it hand out what has been sent, if it runs."""
        if self.runs:
            self._handed_out.clear()
            self._sent.set()
            self._handed_out.wait(_TICK_S)

    def wait_for_reply(self, longest_s: float) -> None:
        """Wait for so long; or if it runs, for a reply, and 0.1 s if none comes."""
        if self._keeps:
            self._replied.wait(max(longest_s, _TICK_S))
            self._replied.clear()
        else:
            time.sleep(longest_s)

    def run(self, loop: Callable[..., None], *given: Any) -> None:
        """Be the thread that hands out messages.

        Parameters
        ----------
        loop : callable
            Flower's own.
        given
            Its arguments, the last of which is the event that ends the simulation.
        """
        *others, stop = given
        self.runs = True
        try:
            loop(*others, self._wakeable(stop))
        finally:
            self.runs = False
            self._handed_out.set()

    def _wakeable(self, stop: threading.Event) -> SimpleNamespace:
        """Make an event whose waits also end when there are messages."""

        def wait(timeout: float) -> bool:
            if not self._sent.is_set():
                self._handed_out.set()
                self._sent.wait(timeout)
            self._sent.clear()
            return stop.is_set()

        return SimpleNamespace(is_set=stop.is_set, wait=wait)

    def keep(self, loop: Callable[..., None], state: Any, *given: Any) -> None:
        """Be the thread that keeps replies in ``state``, by Flower's own loop."""

        def store(reply: Any) -> Any:
            try:
                return state.store_message_res(reply)
            finally:
                self._replied.set()

        self._keeps = True
        try:
            loop(SimpleNamespace(store_message_res=store), *given)
        finally:
            self._keeps = False


simulation = Simulation()


def shorten_waits() -> None:
    """Let Flower wait less in this process, before it begins to.

    Flower's server takes a reply as soon as its upload begins. What is not there yet
    it seeks again after 1 s, then after 2, 4, 8 and 10 s. Threads of its simulation
    start when Ray has, while a ServerApp is imported at once.
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
    engine: Any = sys.modules.get("flwr.server.superlink.fleet.vce.vce_api")
    threads = (
        ("add_messages_to_queue", simulation.run),
        (
            "put_message_into_state",
            simulation.keep,
        ),
    )
    for name, ours in threads:
        loop = getattr(engine, name, None)
        if loop is not None and not isinstance(loop, partial):
            setattr(engine, name, partial(ours, loop))
