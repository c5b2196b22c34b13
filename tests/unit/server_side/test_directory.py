"""Roll call, addressing and failures, with a grid that misbehaves on demand."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import toys
from flwr.app import Error, Message, RecordDict

from fedgraph_flwr.core.errors import DataError, RunFailedError, WireError
from fedgraph_flwr.core.wire import Parcel, pack
from fedgraph_flwr.methods.spreadgnn import METHOD
from strategies import directory as module
from strategies.directory import Directory
from strategies.round_report import ClientInfo

pytestmark = pytest.mark.usefixtures("task_identity")


def introduction(facts=(), **changes) -> Parcel:
    counts = ("num-train", "num-val", "num-test", "num-features", "num-classes")
    numbers = {name.replace("_", "-"): value for name, value in changes.items()}
    return Parcel(
        metrics={**dict.fromkeys(counts, 1), "group": 1, **numbers},
        facts={"split-hash": "", "raw-sha256": "", **dict(facts)},
    )


def other_data() -> Parcel:
    return introduction(facts={"split-hash": "ab" * 32})


class FakeGrid:
    """Nodes answer with what ``answers`` holds.

    That is parcels, all of a reply, an Error, or None: never.
    """

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
                is_whole = isinstance(answer, RecordDict)
                content = answer if is_whole else pack(answer)
                replies.append(Message(content, reply_to=message))
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
    assert directory.hosted()[5] == [0, 1]


def test_names_and_texts_of_clients_break_no_line_where_they_are_shown(directory):
    facts = {"tasks": '["a\\u001b[2J\\n"]', "told/columns": "b\x1b[2J\n"}
    client = introduction(facts=facts)
    info = directory.call(FakeGrid({5: dict.fromkeys((0, 1, 2), client)}))[0]
    assert info.tasks == (r"a\x1b[2J\n",)
    assert info.introduced == {"columns": r"b\x1b[2J\n"}


def patient() -> Directory:
    return Directory(toys.resolved(**{"roll-call-timeout-s": 60.0}).settings)


def test_a_node_that_is_restarted_in_roll_call_is_taken_when_the_old_one_is_gone(
    caplog,
):
    grid, looks = FakeGrid({5: {0: introduction()}, 6: {0: introduction()}}), []

    def nodes():
        looks.append(1)
        if len(looks) == 5:  # Flower finds out
            del grid.answers[5]
        if len(looks) == 8:
            grid.answers[7] = dict.fromkeys((1, 2), introduction())
        return list(grid.answers)

    grid.get_node_ids = nodes
    infos = patient().call(grid)
    assert {c: i.node_id for c, i in infos.items()} == {0: 6, 1: 7, 2: 7}
    assert "client 0 is claimed by two nodes, 5 and 6" in caplog.text


def test_two_nodes_that_stay_are_not_waited_for_until_the_end_of_roll_call(monkeypatch):
    monkeypatch.setattr(module, "_LEAVE_S", 0.05)
    grid = FakeGrid(
        {n: {0: introduction(facts={"site-name": f"ward-{n}"})} for n in (5, 6)}
    )
    words = r"client 0 is claimed .* 5 \(ward-5\) and 6 \(ward-6\); .*its own clients"
    with pytest.raises(RunFailedError, match=words):
        patient().call(grid)


# Once the run goes on ----------------------------------------------------------------


@pytest.fixture
def called(directory):
    """A directory that found clients 0 and 1 on node 5, and client 2 on node 6."""
    grid = FakeGrid({5: dict.fromkeys((0, 1), introduction()), 6: {2: introduction()}})
    directory.call(grid)
    return directory, grid


HASH = "ab" * 32


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            {2: Parcel(error="DataError: no folder")},
            "client 2 on node 9 is not ready: DataError",
        ),
        (
            {2: other_data()},
            f"other data: split hash was , is {HASH}; restore the data",
        ),
        (
            {2: introduction(num_train=-1)},
            "malformed answer to the roll call: num-train is -1",
        ),
        ({2: introduction(num_train=7)}, "num train was 1, is 7"),
        ({99: introduction()}, "offline"),
        ({}, "offline"),
        (Error(2, "ConfigError"), "offline"),
        (None, "offline"),
    ],
)
def test_whatever_a_late_node_answers_stops_nothing(called, answer, reason):
    directory, grid = called
    grid.answers = {5: grid.answers[5], 9: answer}
    assert directory.hosts(grid, [0, 1, 2]) == {5: [0, 1]}
    assert reason in directory.reason(2)
    node = 9 if answer else 10  # 9 need not be asked again if it hosts nobody
    grid.answers = {5: grid.answers[5], node: {2: introduction()}}
    assert directory.hosts(grid, [0, 1, 2]) == {5: [0, 1], node: [2]}


def leave_out(directory, grid):
    """Let node 6 miss the deadline of round 3."""
    grid.answers[6] = None
    (key,) = grid.push_messages([Message(pack({}), 6, "train")])
    directory.leave_out(6, key, 3)


def test_a_claim_is_looked_at_again_when_the_old_node_is_gone(called):
    directory, grid = called
    leave_out(directory, grid)
    grid.answers[9] = {2: introduction()}
    assert directory.hosts(grid, [2]) == {}  # the old node still counts as online
    assert directory.reason(2) == "has not answered since round 3"
    del grid.answers[6]
    assert directory.hosts(grid, [2]) == {9: [2]}


def test_a_silent_node_is_waited_for_no_second_time_until_it_answers(called):
    directory, grid = called
    leave_out(directory, grid)
    begin = time.monotonic()
    assert directory.hosts(grid, [0, 2]) == {5: [0]}
    assert time.monotonic() - begin < 0.04
    grid.answers[6] = {2: introduction()}
    assert directory.hosts(grid, [0, 2]) == {5: [0], 6: [2]}


def test_a_node_that_went_and_came_back_is_asked_who_it_is(called):
    directory, grid = called
    answer = grid.answers.pop(6)
    assert directory.hosts(grid, [2]) == {}
    grid.answers[6] = {2: other_data()}
    assert directory.hosts(grid, [2]) == {}
    assert "came back with other data" in directory.reason(2)
    grid.answers[6] = answer
    assert directory.hosts(grid, [2]) == {6: [2]}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            {0: introduction(num_train=-1)},
            WireError,
            "num-train is -1, expected a number",
        ),
        (  # the server would make a model of that width
            {0: introduction(num_features=10**9)},
            WireError,
            "num-features is 1000000000, expected a number from 1 to",
        ),
        ({0: introduction(told=1)}, WireError, r"it sent \['told'\]"),
        (
            {0: introduction(facts={"split-hash": "a" * 63})},
            WireError,
            "split-hash is a+, expected a SHA-256 or nothing",
        ),
        (
            {0: introduction(facts={"site-name": "a\nb"})},
            WireError,
            "site-name is .*, expected",
        ),
        (
            {0: introduction(facts={"told/columns": "a" * 1001})},
            WireError,
            "told/columns is a+.*, expected a short text",
        ),
        (  # every checkpoint would hold it
            {0: introduction(facts={"told/" + "x" * 2**20: "v"})},
            WireError,
            "client 0 on node 5 .* have 1048602 characters, expected at most 1048576",
        ),
        (
            pack({7: introduction()}, {"site-name": "ward"}),
            RunFailedError,
            r"node 5 \(ward\) hosts clients \[7\].*num-clients = 3",
        ),
        ({0: Parcel(error="no data")}, DataError, "client 0 on node 5 is not"),
        (Error(2, "boom"), RunFailedError, "node 5 failed at roll call: boom"),
        (Error(5, "gone"), RunFailedError, "answered no roll .*node 5: error 5: gone"),
        ({}, RunFailedError, "answered no roll .*node 5 hosts no client"),
    ],
)
def test_what_is_wrong_before_training_stops_a_new_run(directory, answer, error, words):
    with pytest.raises(error, match=words):
        directory.call(FakeGrid({5: answer}))


def test_a_node_that_was_just_gone_is_asked_again(directory, monkeypatch):
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    grid = FakeGrid({5: Error(5, "gone")})
    seen = []

    def pull(ids):
        replies = FakeGrid.pull_messages(grid, ids)
        seen.append(len(replies))
        grid.answers = {5: dict.fromkeys((0, 1, 2), introduction())}
        return replies

    grid.pull_messages = pull
    assert sorted(directory.call(grid)) == [0, 1, 2]
    assert sum(seen) == 2


def resumed(**changes) -> Directory:
    bounds = {"roll-call-timeout-s": 0.05, "round-timeout-s": 0.05, **changes}
    directory = Directory(toys.resolved(**bounds).settings, fields=METHOD.params.FIELDS)
    known = {c: toys.info(c, identity="a" * 8, tasks=("x",)) for c in range(3)}
    told = {c: json.loads(json.dumps(i.to_json())) for c, i in known.items()}
    directory.expect({c: ClientInfo.from_json(i) for c, i in told.items()})
    return directory


SAME = introduction(facts={"tasks": '["x"]', "identity": "a" * 8})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"identity": "b" * 8}, "identity was aaaaaaaa, is bbbbbbbb"),
        (
            {"told/columns": "mass"},
            "what it tells was {'columns': ''}, is {'columns': ",
        ),
    ],
)
def test_a_resumed_run_goes_on_without_those_that_are_others(other, words):
    directory = resumed(**{"min-fit-replies": 0.6})
    free = {"told/statistics": "{}", "told/public-key": "ab", "told/unused": "a file"}
    answers = {
        c: replace(SAME, facts={**SAME.facts, **more})
        for c, more in enumerate([{}, free, other])
    }
    grid = FakeGrid({5: answers})
    found = directory.call(grid)
    assert [found[c].node_id for c in (0, 1, 2)] == [5, 5, -1]
    assert directory.hosts(grid, [0, 1, 2]) == {5: [0, 1]}
    assert words in directory.reason(2)
    with pytest.raises(RunFailedError, match=r"clients \[2\] .* with other data"):
        resumed().call(grid)
    with pytest.raises(RunFailedError, match=r"clients \[0, 1, 2\] of 3 answered no"):
        resumed().call(FakeGrid({}))


def claimed(*, at: int) -> FakeGrid:
    """Node 9 has client 1, and claims the others; node 5 is online at look ``at``."""
    other = replace(SAME, facts={**SAME.facts, "split-hash": HASH})
    grid, looks = FakeGrid({9: {0: other, 1: SAME, 2: other}}), []

    def nodes():
        looks.append(1)
        if len(looks) == at:
            grid.answers[5] = {0: SAME, 2: SAME}
        return list(grid.answers)

    grid.get_node_ids = nodes
    return grid
