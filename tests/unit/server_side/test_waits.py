"""``strategies/waits.py``: Flower waits less for messages and for rests of replies."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from fedgraph_flwr import server_app
from fedgraph_flwr.resolve import defaults
from strategies import sending, waits
from strategies.waits import Dispatcher

ENGINE: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
pytestmark = pytest.mark.usefixtures("task_identity")
FLOWERS = ENGINE.add_messages_to_queue
NODES = (3, 1, 2)  # in the order in which Flower looks after them
LONG_S = 60.0


class Post:
    """Flower's messages on their way to nodes; as grid and as state."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[Message]] = {}

    def push_messages(self, messages: Sequence[Message]) -> list[str]:
        for message in messages:
            self.waiting.setdefault(message.metadata.dst_node_id, []).append(message)
        return [str(m.metadata.dst_node_id) for m in messages]

    def get_message_ins(self, node_id: int, limit: int) -> list[Message]:
        found = self.waiting.get(node_id, [])
        self.waiting[node_id] = found[limit:]
        return found[:limit]

    def pull_messages(self, _: list[str]) -> list[Message]:
        return []


class Simulation:
    """Flower's dispatcher at work, each wait of which would last as long as a test."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher, self.post = dispatcher, Post()
        self.handed: queue.Queue[Message] = queue.Queue()
        self.stop = threading.Event()
        self.waits = threading.Event()
        given = (self._loop, self.post, self.handed, dict.fromkeys(NODES), self.stop)
        self.thread = threading.Thread(target=dispatcher.run, args=given, daemon=True)
        self.thread.start()
        assert self.waits.wait(LONG_S)

    def _loop(self, *given: Any) -> None:
        *others, stop = given

        def wait(_: float) -> bool:
            self.waits.set()
            return bool(stop.wait(LONG_S))

        FLOWERS(*others, SimpleNamespace(is_set=stop.is_set, wait=wait))

    def close(self) -> None:
        self.stop.set()
        self.dispatcher.hand_out()
        self.thread.join(LONG_S / 2)
        assert not self.thread.is_alive()


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulation]:
    monkeypatch.setattr(waits, "_TICK_S", LONG_S)
    found = Simulation(Dispatcher())
    yield found
    found.close()


def messages() -> list[Message]:
    return [Message(RecordDict(), n, "query") for n in (2, 3, 1)]


def test_messages_are_handed_out_as_soon_as_they_are_told_of(
    simulation: Simulation,
) -> None:
    simulation.post.push_messages(messages())

    simulation.dispatcher.hand_out()

    assert simulation.handed.qsize() == len(NODES)


def test_the_first_message_is_handed_out_first(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "dispatcher", simulation.dispatcher)

    assert sending.exchange(simulation.post, messages(), 0.0) == []  # type: ignore[arg-type]

    order = [simulation.handed.get().metadata.dst_node_id for _ in NODES]
    assert order == [2, 3, 1]


def test_told_in_the_midst_of_a_look_it_looks_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_TICK_S", LONG_S)
    dispatcher, looks = Dispatcher(), []
    under_way, told = threading.Event(), threading.Event()

    def loop(stop: Any) -> None:
        while not stop.is_set():
            time.sleep(0.1)  # a look takes its time
            looks.append(len(looks))
            if len(looks) == 1:
                under_way.set()
                assert told.wait(LONG_S)
            stop.wait(LONG_S)

    stop = threading.Event()
    thread = threading.Thread(target=dispatcher.run, args=(loop, stop), daemon=True)
    thread.start()
    assert under_way.wait(LONG_S)
    teller = threading.Thread(target=dispatcher.hand_out, daemon=True)
    teller.start()
    while not dispatcher._told.is_set():
        assert teller.is_alive()
    told.set()
    teller.join(LONG_S / 2)

    assert not teller.is_alive()
    assert looks == [0, 1]
    stop.set()
    dispatcher.hand_out()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


def test_nothing_is_waited_for_if_no_dispatcher_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_TICK_S", LONG_S)
    dispatcher = Dispatcher()
    monkeypatch.setattr(dispatcher._idle, "wait", lambda _: pytest.fail("waited"))

    dispatcher.hand_out()

    def broken(*_: object) -> None:
        raise OSError("the state is gone")

    with pytest.raises(OSError, match="gone"):
        dispatcher.run(broken, threading.Event())
    dispatcher.hand_out()


def test_flower_waits_less_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = import_module("flwr.superlink.grid.http_grid")
    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)
    monkeypatch.setattr(ENGINE, "add_messages_to_queue", FLOWERS)

    waits.shorten_waits()
    waits.shorten_waits()

    found = inspect.signature(grid.pull_objects).parameters
    assert (found["initial_backoff"].default, found["backoff_cap"].default) == (0.05, 1)
    assert found["max_tries_per_object"].default is None
    assert ENGINE.add_messages_to_queue.func == waits.dispatcher.run
    assert ENGINE.add_messages_to_queue.args == (FLOWERS,)


def test_another_flower_keeps_its_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ENGINE, "add_messages_to_queue")

    waits.shorten_waits()

    assert not hasattr(ENGINE, "add_messages_to_queue")


def test_a_server_that_flower_starts_shortens_waits_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []

    def run(*_: object, **__: object) -> Path:
        done.append("run")
        return tmp_path

    monkeypatch.setattr(server_app, "_describe_run", lambda *_: None)
    monkeypatch.setattr(server_app, "shorten_waits", lambda: done.append("waits"))
    monkeypatch.setattr(server_app, "run", run)
    context = SimpleNamespace(run_config=defaults(), run_id=1)

    server_app.main(None, context)  # type: ignore[arg-type]

    assert done == ["waits", "run"]
