"""Attacks of a hostile server on what a site keeps: each was tried and is mended."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import toys
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from clients import letters
from clients.base import GraphClient
from clients.store import bind_config, bind_run, bound_runs
from fedgraph_flwr.client_app import app
from fedgraph_flwr.core.errors import PolicyError, RunFailedError
from fedgraph_flwr.core.wire import AUDIT_HEAD, Parcel, pack, record_sizes, unpack
from fedgraph_flwr.node.gate import KINDS, Visit, let_out
from fedgraph_flwr.node.policy import Policy
from fedgraph_flwr.resolve import defaults, resolve

ONE_ROUND = {"num-server-rounds": 1}
SCORES = {"eval/test/post_aggregation/accuracy": 0.75, "grad-norm": 0.5}


@pytest.fixture
def heads(monkeypatch):
    """Heads of audit logs as the server receives them, with kinds of messages."""
    found = []

    def keep(message, reply):
        if not reply.has_error():
            head = unpack(reply.content)[1].get(AUDIT_HEAD)
            found.append((message.metadata.message_type, head))

    toys.on_delivery(monkeypatch, after=keep)
    return found


def lines(folder):
    return [json.loads(x) for x in (folder / "audit.jsonl").read_text().splitlines()]


def answer(node, kind, content, *, run_id=1, **config):
    """Let a site answer one message."""
    given = {**defaults(), **toys.tiny("fedavg"), **config}
    context = Context(run_id, 1, node, RecordDict(), given)
    return unpack(app(Message(content, 1, kind), context).content)


def header(**more):
    return {"experiment": "e", "server-round": 1, "keep-from": 0, **more}


# What the head of the audit log tells ------------------------------------------------


def test_the_head_of_the_log_confirms_no_guess_of_a_score(run, tmp_path, heads):
    """All else of the line is known to the server; a score is one of few fractions."""
    node = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    node |= toys.policy(tmp_path, scores=False)
    run("fedavg", node_configs=[node], **ONE_ROUND)
    (kind, head), last = heads[-1], lines(tmp_path)[-1]
    assert kind == "evaluate"
    assert last["withheld"] == ["scores"]
    text = (tmp_path / "audit.jsonl").read_bytes().splitlines()[-1]
    assert hashlib.sha256(text).hexdigest() == head
    known = {k: v for k, v in last.items() if k != "salt"}
    for right in range(last["examples"] + 1):
        guess = json.dumps({**known, "score": right / last["examples"]})
        assert hashlib.sha256(guess.encode()).hexdigest() != head


# Failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [{"scores": False}, {"min_examples": 1}])
def test_a_failure_carries_no_number_but_privacy_and_time(
    run, tmp_path, monkeypatch, policy
):
    counts = {} if "scores" in policy else {"class-count/0": 9, "num-examples": 7}

    def failing(self, parcel, _):
        return Parcel(error="ValueError: x", metrics={**SCORES, **counts})

    monkeypatch.setattr(GraphClient, "participate", failing)
    left = []

    def keep(message, reply):
        if message.metadata.message_type == "train":
            left.extend(unpack(reply.content)[0].values())

    toys.on_delivery(monkeypatch, after=keep)
    node = {"clients": "0,1,2", "state-dir": str(tmp_path)}
    with pytest.raises(RunFailedError, match=r"(ValueError|PolicyError): see"):
        run("fedavg", node_configs=[{**node, **toys.policy(tmp_path, **policy)}])
    assert left
    assert all(set(p.metrics) == {"started-at", "compute-s"} for p in left)


# What a reply holds beside what is read of it ----------------------------------------

SECRET = b"SECRET" * 1000


def with_note(note):
    """Arrays without any array, and a text where safetensors has room for one."""
    head = json.dumps({"__metadata__": {"note": note}}).encode()
    return ConfigRecord({"safetensors": len(head).to_bytes(8, "little") + head})


@pytest.mark.parametrize(
    "hidden",
    [
        {"header": ConfigRecord({"x": SECRET})},
        {"header": ConfigRecord({"x": [0.5] * 500})},
        {"0/error": ConfigRecord({"reason": "PolicyError: x", "more": SECRET})},
        {"0/error": ConfigRecord({"reason": "PolicyError: " + "SECRET" * 1000})},
        {"0/arrays": with_note(SECRET.decode())},
        {"0/evaluation": with_note(SECRET.decode())},
        {"0/facts": ConfigRecord({"split-hash": SECRET})},
        {"0/arrays": ConfigRecord({"safetensors": SECRET, "more": SECRET})},
    ],
    ids=lambda records: "-".join(records),
)
@pytest.mark.parametrize("policy", [{"sealed_only": True}, {"update_clip_max": 1.0}])
def test_nothing_leaves_that_was_not_read(hidden, policy):
    content = {"header": ConfigRecord({}), "0/metrics": MetricRecord({}), **hidden}
    now = Visit(node={"": ""}, policy=Policy(**policy))
    try:
        left = let_out(now, "train", pack({}, {}), RecordDict(content))
    except PolicyError:
        return
    assert sum(size for *_, size in record_sizes(left)) < 4500
    assert str(left).count("SECRET") < 700  # a reason is cut
    assert "0.5, 0.5" not in str(left)


@pytest.mark.parametrize(
    "letter",
    [
        np.frombuffer(letters._OPEN + b"letter", np.uint8),
        np.frombuffer(letters._SEALED + b"letter!!", np.float32),
    ],
    ids=["open", "numbers-that-look-sealed"],
)
@pytest.mark.parametrize("place", ["arrays", "evaluation"])
def test_an_array_that_is_no_sealed_letter_stays_where_sealed_ones_leave(place, letter):
    now = Visit(node={"": ""}, policy=Policy(sealed_only=True))
    sealed = {"to/2": np.frombuffer(letters._SEALED + b"letter", np.uint8)}

    def parcel(arrays):
        left = let_out(now, "train", pack({}, {}), pack({0: Parcel(**arrays)}, {}))
        return unpack(left)[0][0]

    assert not parcel({place: sealed}).error
    refused = parcel({place: {**sealed, "to/1": letter}})
    assert refused.error.startswith("PolicyError (sealed-only): ")
    assert "arrays that are not sealed" in now.failures[0]
    assert not refused.arrays
    assert not refused.evaluation


@pytest.mark.parametrize(
    ("source", "policy", "why"),
    [
        ("last-grad-norm", Policy(), ""),
        ("last-grad-norm", Policy(update_clip_max=1.0), "norms of gradients"),
        ("update-norm", Policy(), "a number that its policy has no name for"),
    ],
)
def test_a_number_leaves_if_the_method_declares_it_and_the_policy_agrees(
    source, policy, why
):
    sends = toys.resolved("gcfl+", **{"gcfl.seq-source": source})
    now = Visit(node={"": ""}, policy=policy, resolved=sends)
    sent = pack({0: Parcel(metrics={"grad-norm": 1.0})}, {})
    left = unpack(let_out(now, "train", pack({}, {}), sent))[0][0]
    assert why in now.failures.get(0, "")
    assert ("grad-norm" in left.metrics) == (not why)


# A dry run deletes what it has left, and nothing else --------------------------------


@pytest.mark.usefixtures("task_identity")
@pytest.mark.parametrize("clients", [(0,), ()])
def test_a_dry_run_cannot_delete_another_experiment(toy_data, tmp_path, clients):
    """It names one in mid-run, to a site that lets clients begin afresh."""
    node = {"clients": "0", "state-dir": str(tmp_path), "fresh-start": True}
    config = resolve({**defaults(), **toys.tiny("fedavg")}).to_config()
    bind_run(tmp_path, 5, "e", config)
    kept = tmp_path / "e" / "client-0" / "model"
    kept.parent.mkdir(parents=True)
    kept.write_text("state")
    notes = bound_runs(tmp_path)
    for run_id in (5, 6):  # the run itself, turned into a dry one, and another run
        for kind in KINDS:
            content = pack(dict.fromkeys(clients, Parcel()), header())
            try:
                answer(node, kind, content, run_id=run_id, **{"dry-run": True})
            except RunFailedError:
                continue
    assert kept.read_text() == "state"
    assert bound_runs(tmp_path)["e"] == notes["e"]
    bind_config(tmp_path, "e", config)  # and it is bound to what it was
