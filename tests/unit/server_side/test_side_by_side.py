"""``side_by_side``: a reply that does not arrive, or is none, is one node's alone.

Flower's own Grid over HTTP, with a SuperLink in its place that this test makes up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedgraph_flwr import server_app
from fedgraph_flwr.core.flower_names import Changed, shorten_waits
from fedgraph_flwr.core.wire import Parcel, pack
from fedgraph_flwr.resolve import defaults
from strategies import sending
from strategies.sending import side_by_side

LONG_S = 60.0
pytestmark = pytest.mark.usefixtures("task_identity")
Parts = dict[str, bytes]


class SuperLink:
    """Client of a SuperLink: tells of each reply once, and hands out what has come."""

    def __init__(self):
        self.replies: dict[str, tuple[Any, ObjectTree]] = {}
        self.objects: Parts = {}
        self.asked: list[list[str]] = []
        self.looks = 0

    def put(self, asked: str, reply: Message, tree: Any, parts: Parts):
        about = message_to_proto(Message(Error(0), reply_to=sent(asked)))
        about.metadata.message_id = tree.object_id
        self.replies[asked] = about, tree
        self.objects |= parts

    def PullMessages(self, request):
        self.asked.append(list(request.message_ids))
        found = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        return PullAppMessagesResponse(
            messages_list=[about for about, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request):
        self.looks += 1
        content = self.objects.get(request.object_id, b"")
        return PullObjectResponse(
            object_found=True, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, _: Any) -> Any:
        return ConfirmMessageReceivedResponse()


def sent(asked: str) -> Message:
    message = Message(RecordDict(), 7, "train")
    message.metadata.__dict__["_message_id"] = asked
    return message


def reply(asked: str, client: int = 0) -> Message:
    return Message(pack({client: Parcel(metrics={"a": 1})}), reply_to=sent(asked))


def honest(asked: str) -> tuple[Message, ObjectTree, Parts]:
    made = reply(asked)
    parts = {i: part.deflate() for i, part in get_all_nested_objects(made).items()}
    return made, get_object_tree(made), parts


def raw(kind: str, children: Iterable[str], body: bytes) -> tuple[str, bytes]:
    """Object as Flower sends it, and its id."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    return get_object_id(content), content


def with_record(asked: str, kind: str, body: bytes) -> tuple[Any, ObjectTree, Parts]:
    """Reply whose one record has this body."""
    part, record = raw(kind, [], body)
    whole, content = raw("RecordDict", [part], json.dumps({"header": part}).encode())
    proto = message_to_proto(reply(asked))
    proto.ClearField("content")
    message, outer = raw("Message", [whole], proto.SerializeToString())
    inner = ObjectTree(object_id=whole, children=[ObjectTree(object_id=part)])
    tree = ObjectTree(object_id=message, children=[inner])
    return None, tree, {part: record, whole: content, message: outer}


def garbage(asked: str) -> Any:
    """A record that is no protobuf."""
    return with_record(asked, "ConfigRecord", b"\xff\xff\xff\xff\xff")


def no_message(asked: str) -> Any:
    """What should be the message is its content."""
    made, tree, parts = honest(asked)
    return made, tree.children[0], parts


def another(asked: str) -> Any:
    """Inside it says that it answers a message to another node."""
    return honest(f"not-{asked}")


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


@pytest.fixture
def grid(superlink, monkeypatch) -> Iterator[Any]:
    module = __import__("flwr.superlink.grid.http_grid", fromlist=["x"])
    monkeypatch.setattr(module, "pull_objects", module.pull_objects)
    shorten_waits()
    with side_by_side(own_grid(superlink)) as fetched:
        fetched.push_messages([sent(asked) for asked in "123"])
        yield fetched


def own_grid(superlink) -> HttpGrid:
    """Flower's Grid, connected to this SuperLink, which takes all messages."""
    found = HttpGrid(token="a")
    vars(found).update(
        _client=superlink,
        _run=SimpleNamespace(run_id=1),
        push_messages=lambda messages: [m.metadata.message_id for m in messages],
    )
    return found


def pull(grid, *asked: str, number: int) -> dict[str, Message]:
    """Ask until so many replies are there."""
    deadline, found = time.monotonic() + LONG_S, {}
    while len(found) < number:
        assert time.monotonic() < deadline
        for got in grid.pull_messages([i for i in asked if i not in found]):
            found[got.metadata.reply_to_message_id] = got
    return found


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (garbage, "DecodeError"),
        (no_message, "'RecordDict' object has no attribute 'metadata'"),
        (another, "inside it says that it answers another message"),
    ],
)
def test_a_reply_that_is_none_is_the_error_of_its_node_alone(
    superlink, grid, spoil: Callable[[str], Any], words: str
):
    """It ended the run, and good ones that were fetched with it were lost."""
    for asked, made in {"1": honest, "2": spoil, "3": honest}.items():
        superlink.put(asked, *made(asked))

    found = pull(grid, "1", "2", "3", number=3)

    assert found["2"].error.code == 3
    assert words in str(found["2"].error.reason)
    for asked in ("1", "3"):
        assert found[asked].content["0/metrics"] == MetricRecord({"a": 1})


def test_a_reply_without_end_is_not_fetched(superlink, grid, monkeypatch):
    """The process that fetched it would be killed, and the run with it."""
    monkeypatch.setattr(sending, "memory", lambda: 8 * 5000)
    _, tree, parts = honest("1")
    for number in range(1000):
        part, content = raw("ArrayChunk", [], b"%1000d" % number)
        tree.children.append(ObjectTree(object_id=part))
        parts[part] = content
    superlink.put("1", None, tree, parts)
    superlink.put("2", *honest("2"))

    found = pull(grid, "1", "2", number=2)

    words = "WireError: it has more than 5000 bytes, the 8th part of the server's"
    assert words in str(found["1"].error.reason)
    assert superlink.looks < 30
    assert not found["2"].has_error()


def test_a_reply_that_stops_on_its_way_holds_up_no_other(superlink, grid):
    """Its node was killed in the midst: all others were late, and the run ended."""
    _, tree, parts = honest("1")
    superlink.put("1", None, tree, {})
    superlink.put("2", *honest("2"))

    assert set(pull(grid, "1", "2", number=1)) == {"2"}
    superlink.put("3", *honest("3"))
    assert set(pull(grid, "1", "3", number=1)) == {"3"}
    assert superlink.asked.count(["1"]) == 1  # Flower tells of a reply once

    superlink.objects |= parts
    assert set(pull(grid, "1", number=1)) == {"1"}
    assert grid.get_node_ids  # all else is Flower's


def test_a_server_that_flower_starts_shortens_waits_and_fetches_side_by_side(
    monkeypatch, tmp_path: Path
):
    done: list[Any] = []

    def run(grid, *_: object, **__: object) -> Path:
        done.append(type(grid))
        return tmp_path

    monkeypatch.setattr(server_app, "_describe_run", lambda *_: None)
    monkeypatch.setattr(server_app, "shorten_waits", lambda: done.append("waits"))
    monkeypatch.setattr(server_app, "run", run)
    context = SimpleNamespace(run_config=defaults(), run_id=1)

    server_app.main(HttpGrid(token="a"), context)

    assert done == ["waits", Changed]
