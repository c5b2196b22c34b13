"""``flower_names.py``: a simulation is woken by messages, and wakes us by replies."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from fedgraph_flwr.core import flower_names

ENGINE: Any = import_module("flwr.server.superlink.fleet.vce.vce_api")
pytestmark = pytest.mark.usefixtures("task_identity")
HANDS_OUT, KEEPS = ENGINE.add_messages_to_queue, ENGINE.put_message_into_state


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
