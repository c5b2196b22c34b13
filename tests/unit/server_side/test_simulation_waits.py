"""``flower_names.py``: a simulation is woken by messages, and wakes us by replies."""

from __future__ import annotations

import inspect
import queue
import threading
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from fedgraph_flwr.core import flower_names
from fedgraph_flwr.core.flower_names import Simulation
from strategies import sending

ENGINE: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
pytestmark = pytest.mark.usefixtures("task_identity")
HANDS_OUT, KEEPS = ENGINE.add_messages_to_queue, ENGINE.put_message_into_state
LONG_S = 60.0


class Post:
    """Flower's messages on their way to nodes; as grid and as state."""

    def __init__(self):
        self.waiting: dict[int, list[Message]] = {}

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            self.waiting.setdefault(message.metadata.dst_node_id, []).append(message)
        return [str(m.metadata.dst_node_id) for m in messages]

    def get_message_ins(self, node_id: int, limit: int) -> list[Message]:
        found = self.waiting.get(node_id, [])
        self.waiting[node_id] = found[limit:]
        return found[:limit]

    def pull_messages(self, _: list[str]) -> list[Message]:
        return []


def test_messages_are_handed_out_as_soon_as_they_are_sent(
    monkeypatch,
):
    simulation, post, stop = Simulation(), Post(), threading.Event()
    handed: queue.Queue[Message] = queue.Queue()
    monkeypatch.setattr(sending, "simulation", simulation)

    def loop(*given: Any):
        *others, ours = given
        waits = SimpleNamespace(is_set=ours.is_set, wait=lambda _: ours.wait(LONG_S))
        HANDS_OUT(*others, waits)

    given = (loop, post, handed, dict.fromkeys((3, 1, 2)), stop)
    thread = threading.Thread(target=simulation.hand_out, args=given, daemon=True)
    thread.start()
    sent = [Message(RecordDict(), n, "query") for n in (2, 3, 1)]
    assert sending.exchange(post, sent, 0.0) == []

    got = {handed.get(timeout=LONG_S / 2).metadata.dst_node_id for _ in sent}
    assert got == {1, 2, 3}
    stop.set()
    simulation.wake()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()


class Replies:
    """Flower's state, as far as it keeps replies; what is lost cannot be kept."""

    store_traffic = "as ever"

    def __init__(self):
        self.kept: list[str] = []

    def store_message_res(self, reply: str):
        if reply == "lost":
            raise OSError("no room")
        self.kept.append(reply)


def test_a_reply_ends_the_wait_for_it(monkeypatch):
    monkeypatch.setattr(flower_names, "_LEAST_S", LONG_S)
    simulation, replies, stop = Simulation(), Replies(), threading.Event()
    arrived: queue.Queue[str] = queue.Queue()
    given = (KEEPS, replies, arrived, stop)
    thread = threading.Thread(target=simulation.keep, args=given, daemon=True)
    begin = time.monotonic()
    thread.start()
    while not simulation.runs:
        assert time.monotonic() - begin < LONG_S / 2

    for reply in ("one", "two"):
        threading.Timer(0.1, arrived.put, [reply]).start()
        simulation.wait(0.001, LONG_S)
        assert replies.kept[-1] == reply
    assert time.monotonic() - begin < LONG_S / 2

    stop.set()
    thread.join(LONG_S / 2)
    assert not thread.is_alive()
    assert not simulation.runs


@pytest.fixture
def http_grid(monkeypatch) -> Any:
    """Flower's module of that name, put back after the test, as is the engine."""
    grid = import_module("flwr.superlink.grid.http_grid")
    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)
    monkeypatch.setattr(ENGINE, "add_messages_to_queue", HANDS_OUT)
    monkeypatch.setattr(ENGINE, "put_message_into_state", KEEPS)
    return grid


def test_flower_waits_less_from_then_on(http_grid):
    flowers = http_grid.pull_objects
    options = inspect.signature(flowers).parameters
    assert {"object_ids", "pull_object_fn", *flower_names._AGAIN_S} <= set(options)

    flower_names.shorten_waits()
    flower_names.shorten_waits()

    assert http_grid.pull_objects.args == (flowers,)
    hands_out, keeps = ENGINE.add_messages_to_queue, ENGINE.put_message_into_state
    assert (hands_out.func, hands_out.args) == (
        flower_names.simulation.hand_out,
        (HANDS_OUT,),
    )
    assert (keeps.func, keeps.args) == (flower_names.simulation.keep, (KEEPS,))


def test_another_flower_keeps_its_waits_and_says_so(
    http_grid, monkeypatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delattr(ENGINE, "add_messages_to_queue")
    monkeypatch.delattr(http_grid, "pull_objects")

    flower_names.shorten_waits()

    said = [m for m in caplog.messages if "another Flower" in m]
    assert len(said) == 2
    assert "it waits longer for the rest of a reply" in said[0]
    assert "rounds of a simulation take 0.1 s more" in said[1]
    assert KEEPS is ENGINE.put_message_into_state
