"""A SuperNode of somebody's own making, whose replies Flower cannot fetch."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from federation import Federation, environment
from flwr.app import Context, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
)
from flwr.supernode.fleet_http_connection import http_request_response

from fedgraph_flwr.client_app import app
from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.resolve import defaults
from fedgraph_flwr.results.reader import load_summary

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]
BAD = 2  # client
GARBAGE, STOPS, ROUNDS = (
    2,
    3,
    4,
)  # the rounds of both kinds of replies, and their number
RUN: dict[str, Value] = {
    "method": "fedavg",
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": ROUNDS,
    "hidden-dim": 8,
    "min-fit-replies": 0.5,
    "late-after-s": 10,
}
Parts = dict[str, bytes]


class BadNode(threading.Thread):
    """Answers as our app does, and spoils two replies on their way."""

    def __init__(self, address: str, state: Path) -> None:
        super().__init__(daemon=True)
        self._address, self._is_over = address, threading.Event()
        self._node = {"clients": str(BAD), "state-dir": str(state)}

    def run(self) -> None:
        with http_request_response(self._address, True) as link:
            while not self._is_over.wait(0.2):
                if (told := link[1]()) is not None:
                    self._answer(link, *told)

    def close(self) -> None:
        self._is_over.set()
        self.join(30)

    def _answer(self, link: Any, envelope: Message, tree: ObjectTree) -> None:
        node, _, send, _, _, pull, push, confirm = link
        run = envelope.metadata.run_id
        message = pull_and_inflate_object_from_tree(
            tree,
            lambda part: pull(run, part),
            lambda part: confirm(run, part),
            return_type=Message,
            initial_backoff=0.05,
        )
        message.metadata.__dict__["_message_id"] = envelope.metadata.message_id
        config = {**defaults(), **RUN}
        reply = app(message, Context(run, node, self._node, RecordDict(), config))
        parts = {i: part.deflate() for i, part in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
        asked = message.content["header"].get("server-round", 0)
        if asked == GARBAGE:
            tree, parts = with_garbage(tree, parts)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        wanted, session = send(reply, tree, 0.1)
        for part in () if asked == STOPS else wanted:
            push(run, session, part, parts[part])


def with_garbage(tree: ObjectTree, parts: Parts) -> tuple[ObjectTree, Parts]:
    """Put a record that is no protobuf in the place of all records."""
    record, found = raw("ConfigRecord", [], b"\xff\xff\xff\xff\xff")
    names = json.loads(parts[tree.children[0].object_id].partition(b"\0")[2])
    body = json.dumps(dict.fromkeys(names, record)).encode()
    whole, content = raw("RecordDict", [record], body)
    message, outer = raw("Message", [whole], parts[tree.object_id].partition(b"\0")[2])
    inner = ObjectTree(object_id=whole, children=[ObjectTree(object_id=record)])
    spoilt = ObjectTree(object_id=message, children=[inner])
    return spoilt, {record: found, whole: content, message: outer}


def raw(kind: str, children: list[str], body: bytes) -> tuple[str, bytes]:
    """Object as Flower sends it, and its id."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body
    return get_object_id(content), content


@pytest.mark.usefixtures("task_identity")
def test_a_site_whose_replies_do_not_arrive_stops_nobody_else(tmp_path: Path) -> None:
    """The first kind ended the run; the second made all others late, for minutes."""
    sites = ['clients="0"', 'clients="1,3"']
    with Federation(tmp_path, environment(tmp_path / "flwr"), sites) as federation:
        bad = BadNode(federation.address, tmp_path / "bad")
        bad.start()
        run_id = federation.submit({**RUN, "results-dir": str(tmp_path / "results")})
        status = federation.wait(run_id, limit_s=600)
        bad.close()
        assert (tmp_path / "results").is_dir(), federation.log(run_id)
    (folder,) = (p for p in (tmp_path / "results").iterdir() if p.is_dir())
    summary = load_summary(folder)
    assert status == "finished:completed", summary["error"]
    told = Counter(f["client"] for f in summary["failures"])
    assert set(told) == {BAD}
    reasons = {f["round"]: f["reason"] for f in summary["failures"]}
    assert "its reply cannot be read: DecodeError" in reasons[GARBAGE]
    assert reasons[STOPS] == "no reply within late-after-s = 10 of the others"
