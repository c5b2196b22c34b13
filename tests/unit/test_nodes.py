"""Roll call, addressing and failures, with a grid that misbehaves on demand."""

from __future__ import annotations

import pytest
import toys
from flwr.app import Error, Message

from fedgraph_flwr.errors import DataError, RunFailedError
from fedgraph_flwr.wire import Parcel, pack
from strategies import nodes
from strategies.nodes import Directory, exchange
from strategies.report import busy_seconds

pytestmark = pytest.mark.usefixtures("task_identity")


def introduction(**changes) -> Parcel:
    counts = (
        "num-train",
        "num-val",
        "num-test",
        "num-features",
        "num-classes",
        "group",
    )
    return Parcel(
        metrics=dict.fromkeys(counts, 1),
        facts={"split-hash": "", "raw-sha256": ""},
        **changes,
    )


class FakeGrid:
    """Nodes answer with what ``answers`` holds: parcels, an Error, or None: never."""

    def __init__(self, answers: dict) -> None:
        self.answers = answers
        self.waiting: dict[str, Message] = {}

    def get_node_ids(self):
        return list(self.answers)

    def push_messages(self, messages):
        for message in messages:
            key = f"m{len(self.waiting)}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = message
            yield key

    def pull_messages(self, ids):
        replies = []
        for key in ids:
            message = self.waiting[key]
            answer = self.answers[message.metadata.dst_node_id]
            if isinstance(answer, Error):
                reply = Message(answer, reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1  # as Flower does
                replies.append(reply)
            elif answer is not None:
                replies.append(Message(pack(answer), reply_to=message))
        return replies


@pytest.fixture
def directory() -> Directory:
    settings = toys.resolved(
        **{"roll-call-timeout-s": 0.05, "round-timeout-s": 0.05}
    ).settings
    return Directory(settings)


def test_roll_call_maps_clients_to_nodes(directory):
    grid = FakeGrid({77: {2: introduction()}, 5: dict.fromkeys((0, 1), introduction())})
    infos = directory.call(grid)
    assert {c: i.node_id for c, i in infos.items()} == {0: 5, 1: 5, 2: 77}
    assert directory.hosts(grid, [2, 1, 0]) == {5: [0, 1], 77: [2]}
    assert directory.members(5) == [0, 1]


def test_missing_clients_are_named_when_time_is_up(directory):
    grid = FakeGrid({5: {1: introduction()}})
    with pytest.raises(RunFailedError, match=r"clients \[0, 2\] of 3 answered no roll"):
        directory.call(grid)


def test_two_nodes_cannot_claim_one_client(directory):
    grid = FakeGrid({5: {0: introduction()}, 6: {0: introduction()}})
    with pytest.raises(
        RunFailedError, match="client 0 is claimed by two nodes, 5 and 6"
    ):
        directory.call(grid)


def test_a_client_without_data_stops_the_run_before_it_starts(directory):
    grid = FakeGrid({5: {0: Parcel(error="DataError: no such folder /x")}})
    with pytest.raises(DataError, match="client 0 is not ready: DataError: no such"):
        directory.call(grid)


def test_a_client_is_found_again_on_a_node_that_came_later(directory):
    grid = FakeGrid({5: dict.fromkeys((0, 1, 2), introduction())})
    directory.call(grid)
    grid.answers = {9: dict.fromkeys((0, 1, 2), introduction())}
    assert directory.hosts(grid, [0, 2]) == {9: [0, 2]}


def test_a_client_whose_node_has_gone_is_not_addressed(directory):
    grid = FakeGrid({5: dict.fromkeys((0, 1), introduction()), 6: {2: introduction()}})
    directory.call(grid)
    del grid.answers[6]
    assert directory.hosts(grid, [0, 1, 2]) == {5: [0, 1]}


def test_a_dead_actor_stops_the_run_at_once_with_the_cure(directory):
    grid = FakeGrid({5: Error(0, "<class 'ray.exceptions.ActorDiedError'>: OOM")})
    with pytest.raises(RunFailedError, match=r"actor serving node 5 died.*batch-size"):
        directory.call(grid)


def test_waiting_for_replies_is_bounded():
    silent = FakeGrid({5: None})
    message = Message(pack({}), 5, "query")
    assert exchange(silent, [message], 0.01) == []


def test_polls_grow_with_the_round(monkeypatch):
    slept: list[float] = []
    clock = iter(range(0, 4000, 100))
    monkeypatch.setattr(nodes.time, "sleep", slept.append)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: float(next(clock)))
    exchange(FakeGrid({5: None}), [Message(pack({}), 5, "query")], 350)
    assert slept == [1.0, 1.0, 1.0]  # 1 % of 100 s and more, capped


def test_busy_time_is_the_union_of_what_clients_did():
    def at(begin: float, seconds: float) -> Parcel:
        return Parcel(metrics={"started-at": begin, "compute-s": seconds})

    overlapping = [at(10, 4), at(12, 4), at(20, 1), at(20.25, 0.5)]
    assert busy_seconds(overlapping, 0, 100) == 7
    assert busy_seconds([at(-5, 10), at(98, 10)], 0, 100) == 7  # clipped
    assert busy_seconds([Parcel()], 0, 100) == 0
