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
from strategies.waits import Simulation

ENGINE: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
pytestmark = pytest.mark.usefixtures("task_identity")
FLOWERS, KEEPS = ENGINE.add_messages_to_queue, ENGINE.put_message_into_state
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


class Engine:
    """Flower's simulation at work, each wait of which would last as long as a test."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.post = simulation, Post()
        self.handed: queue.Queue[Message] = queue.Queue()
        self.stop = threading.Event()
        self.waits = threading.Event()
        given = (self._loop, self.post, self.handed, dict.fromkeys(NODES), self.stop)
        self.thread = threading.Thread(
            target=simulation.run_hander, args=given, daemon=True
        )
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
        self.simulation.hand_out()
        self.thread.join(LONG_S / 2)
        assert not self.thread.is_alive()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(waits, "_HAND_OUT_S", LONG_S)
    found = Engine(Simulation())
    yield found
    found.close()


def messages() -> list[Message]:
    return [Message(RecordDict(), n, "query") for n in (2, 3, 1)]


def test_messages_are_handed_out_as_soon_as_they_are_told_of(
    engine: Engine,
) -> None:
    engine.post.push_messages(messages())

    engine.simulation.hand_out()

    assert engine.handed.qsize() == len(NODES)


def test_the_first_message_is_handed_out_first(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "simulation", engine.simulation)

    assert sending.exchange(engine.post, messages(), 0.0) == []  # type: ignore[arg-type]

    order = [engine.handed.get().metadata.dst_node_id for _ in NODES]
    assert order == [2, 3, 1]


def test_told_in_the_midst_of_a_look_it_looks_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_HAND_OUT_S", LONG_S)
    simulation, looks = Simulation(), []
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
    thread = threading.Thread(
        target=simulation.run_hander, args=(loop, stop), daemon=True
    )
    thread.start()
    assert under_way.wait(LONG_S)
    teller = threading.Thread(target=simulation.hand_out, daemon=True)
    teller.start()
    while not simulation._sent.is_set():
        assert teller.is_alive()
    told.set()
    teller.join(LONG_S / 2)

    assert not teller.is_alive()
    assert looks == [0, 1]
    stop.set()
    simulation.hand_out()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


def test_nothing_is_handed_out_if_no_simulation_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_HAND_OUT_S", LONG_S)
    simulation = Simulation()
    monkeypatch.setattr(simulation._handed_out, "wait", lambda _: pytest.fail("waited"))

    simulation.hand_out()

    def broken(*_: object) -> None:
        raise OSError("the state is gone")

    with pytest.raises(OSError, match="gone"):
        simulation.run_hander(broken, threading.Event())
    simulation.hand_out()


class Replies:
    """Flower's state, as far as it keeps replies; what is lost cannot be kept."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def store_message_res(self, reply: str) -> None:
        if reply == "lost":
            raise OSError("no room")
        self.kept.append(reply)


def test_whoever_waits_for_a_reply_is_told_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_LOOK_S", LONG_S)
    simulation, replies, stop = Simulation(), Replies(), threading.Event()
    arrived: queue.Queue[str] = queue.Queue()
    given = (KEEPS, replies, arrived, stop)
    thread = threading.Thread(target=simulation.run_keeper, args=given, daemon=True)
    begin = time.monotonic()
    thread.start()
    while not simulation.keeps_replies:
        assert time.monotonic() - begin < LONG_S / 2

    for reply in ("one", "two"):
        threading.Timer(0.1, arrived.put, [reply]).start()
        simulation.wait_for_reply(0.001, LONG_S)
        assert replies.kept[-1] == reply
    assert time.monotonic() - begin < LONG_S / 2
    assert not simulation._replied.is_set()

    stop.set()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()
    assert not simulation.keeps_replies


def test_a_reply_that_cannot_be_kept_ends_the_wait_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "_LOOK_S", LONG_S)
    simulation = Simulation()

    def loop(state: Replies) -> None:
        assert simulation.keeps_replies
        with pytest.raises(OSError, match="no room"):
            state.store_message_res("lost")
        simulation.wait_for_reply(0.001, LONG_S)
        raise OSError("the state is gone")

    with pytest.raises(OSError, match="gone"):
        simulation.run_keeper(loop, Replies())
    assert not simulation.keeps_replies


@pytest.mark.parametrize(
    ("pause", "left", "waited"),
    [(0.25, 9.0, 0.25), (0.01, 9.0, 0.1), (0.01, 0.05, 0.05), (5.0, 1.0, 1.0)],
)
def test_a_wait_for_replies_ends_with_the_time_that_is_left(pause, left, waited):
    simulation, slept = Simulation(), []
    simulation.keeps_replies = True
    simulation._replied.wait = slept.append  # type: ignore[method-assign]

    simulation.wait_for_reply(pause, left)

    assert slept == [waited]


def test_what_another_flower_asks_of_its_objects_is_still_there() -> None:
    class State(Replies):
        store_traffic = "as ever"

    class Stop(threading.Event):
        reason = "as ever"

    def keeper(state: Any) -> None:
        state.store_message_res("one")
        assert state.store_traffic == "as ever"

    def hander(stop: Any) -> None:
        assert stop.reason == "as ever"
        assert not stop.is_set()

    simulation, state = Simulation(), State()
    simulation.run_keeper(keeper, state)
    simulation.run_hander(hander, Stop())
    assert state.kept == ["one"]


def test_nothing_is_sent_for_an_exchange_without_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = Simulation()
    simulation.hands_out = True
    monkeypatch.setattr(simulation, "hand_out", lambda: pytest.fail("handed out"))
    monkeypatch.setattr(sending, "simulation", simulation)

    assert sending.exchange(Post(), [], 1.0) == []  # type: ignore[arg-type]


def test_without_a_simulation_a_wait_is_as_long_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(waits.time, "sleep", slept.append)

    Simulation().wait_for_reply(0.25, 0.0)

    assert slept == [0.25]


def test_flower_waits_less_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = import_module("flwr.superlink.grid.http_grid")
    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)
    monkeypatch.setattr(ENGINE, "add_messages_to_queue", FLOWERS)
    monkeypatch.setattr(ENGINE, "put_message_into_state", KEEPS)

    waits.shorten_waits()
    waits.shorten_waits()

    found = inspect.signature(grid.pull_objects).parameters
    assert (found["initial_backoff"].default, found["backoff_cap"].default) == (0.05, 1)
    assert found["max_tries_per_object"].default is None
    hands_out, keeps = ENGINE.add_messages_to_queue, ENGINE.put_message_into_state
    assert (hands_out.func, hands_out.args) == (waits.simulation.run_hander, (FLOWERS,))
    assert (keeps.func, keeps.args) == (waits.simulation.run_keeper, (KEEPS,))


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
