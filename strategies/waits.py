"""Flower's waits between server and nodes, and how this process shortens them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

_AGAIN_S = (0.05, 1.0)  # between two looks for what of a reply still arrives
_TICK_S = 0.11  # a little more than the period of Flower's dispatcher


class Dispatcher:
    """The thread of Flower's simulation that hands messages to actors.

    It looks for messages every 0.1 s, and for those of each node in turn. This lets it
    look as soon as messages have gone out.
    """

    def __init__(self) -> None:
        self._told, self._idle = threading.Event(), threading.Event()
        self.runs = False

    def hand_out(self) -> None:
        """Have it hand out what has gone out, if there is such a thread."""
        if self.runs:
            self._idle.clear()
            self._told.set()
            self._idle.wait(_TICK_S)

    def run(self, loop: Callable[..., None], *given: Any) -> None:
        """Be that thread.

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
            self._idle.set()

    def _wakeable(self, stop: threading.Event) -> SimpleNamespace:
        """Make an event whose waits also end when there are messages."""

        def wait(timeout: float) -> bool:
            if not self._told.is_set():
                self._idle.set()
                self._told.wait(timeout)
            self._told.clear()
            return stop.is_set()

        return SimpleNamespace(is_set=stop.is_set, wait=wait)


dispatcher = Dispatcher()  # of this process, as Flower's is


def shorten_waits() -> None:
    """Let Flower wait less in this process, before it begins to.

    Flower's server takes a reply as soon as its upload begins. What is not there yet
    it seeks again after 1 s, then after 2, 4, 8 and 10 s. Its simulation looks for
    messages every 0.1 s; it imports a ServerApp while Ray starts, and looks after that.
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
    loop = getattr(engine, "add_messages_to_queue", None)
    if loop is not None and not isinstance(loop, partial):
        engine.add_messages_to_queue = partial(dispatcher.run, loop)
