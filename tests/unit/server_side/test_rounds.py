"""One round as the base strategy sees it: replies that come late, wrong or never."""

from __future__ import annotations

import re

import numpy as np
import pytest
from flwr.app import Error, Message
from plays import play

from fedgraph_flwr.core.errors import RunFailedError
from fedgraph_flwr.core.flower_names import simulation
from fedgraph_flwr.core.wire import Parcel, pack, unpack
from simulations.inline import InlineGrid

HOSTS = [(0, 2), (1,)]  # clients by node


class Site(InlineGrid):
    """Nodes that send their clients' number as the model; ``broken`` by client.

    A broken client answers with an error parcel (a text), takes its node down (an
    Error) or makes it fall silent (None).
    """

    def __init__(self, broken: dict, *, backwards: bool = False) -> None:
        self.broken, self.backwards = broken, backwards
        self.silent: set[str] = set()
        super().__init__(
            self.answer,
            [{"clients": list(c)} for c in HOSTS],
            run_config={},
            run_id=1,
        )

    def answer(self, message: Message, context) -> Message:
        if message.metadata.message_type == "query":
            ids = context.node_config["clients"]
            return Message(pack({c: introduction(c) for c in ids}), reply_to=message)
        parcels, _ = unpack(message.content)
        replies = {}
        for c in parcels:
            fault = self.broken.get(c, "")
            if isinstance(fault, Error):
                reply = Message(fault, reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1  # as Flower does
                return reply
            if fault is None:
                self.silent.add(message.metadata.message_id)
            replies[c] = Parcel(error=fault) if fault else trained(c)
        return Message(pack(replies), reply_to=message)

    def pull_messages(self, message_ids):
        wanted = [i for i in message_ids if i not in self.silent]
        found = list(super().pull_messages(wanted))
        return found[::-1] if self.backwards else found


def introduction(client: int) -> Parcel:
    names = ("num-val", "num-features", "num-classes", "group")
    return Parcel(
        metrics={**dict.fromkeys(names, 1), "num-train": client + 1, "num-test": 4},
        facts={"split-hash": "", "raw-sha256": ""},
    )


def trained(client: int) -> Parcel:
    """Client c reports the model [c, 0.1 c] of c + 1 graphs and accuracy 0.1 c."""
    return Parcel(
        arrays={"shared/w": np.float32([client, 0.1 * client])},
        metrics={
            "num-examples": client + 1,
            "compute-s": float(client),
            "started-at": 0.0,
            "eval/test/post_aggregation/accuracy": 0.1 * client,
            "eval/test/post_training/accuracy": 0.1 * client + 0.5,
            "count/test": 4,
        },
    )


def play_with(broken: dict, *, rounds: int = 1, backwards: bool = False, **config):
    """Train with broken clients from round 1 on; return strategy and reports."""
    grid = Site(broken, backwards=backwards)

    def answers(_, messages):
        grid.push_messages(messages)
        return grid.pull_messages([m.metadata.message_id for m in messages])

    settings = {"round-timeout-s": 0.02, "num-server-rounds": 9, **config}
    return play(grid, answers, rounds=rounds, **settings)


def test_a_round_averages_by_examples_and_reads_every_report():
    strategy, (report,) = play_with({})
    # 1, 2 and 3 examples of the models 0, 1 and 2
    assert strategy.theta["w"] == pytest.approx([8 / 6, 0.8 / 6])
    assert report.failures == {}
    assert report.client_compute_s == 3
    points = {
        (e.client, e.point): (e.server_round, e.value) for e in report.evaluations
    }
    # What was received in round 1 is the model of round 0.
    assert points[2, "post_aggregation"] == (0, 0.2)
    assert points[2, "post_training"] == (1, 0.7)
    sent = {(x.direction, x.client, x.record) for x in report.ledger}
    assert {("down", c, "arrays") for c in range(3)} <= sent
    assert {("up", c, "arrays") for c in range(3)} <= sent


def test_replies_may_come_in_any_order():
    there, _ = play_with({})
    back, _ = play_with({}, backwards=True)
    assert back.theta["w"].tobytes() == there.theta["w"].tobytes()


@pytest.mark.parametrize(
    ("broken", "failures", "mean"),
    [
        # One client of a node fails; its neighbour is not held responsible.
        ({0: "disk full"}, {0: "disk full"}, 8 / 5),
        # A node goes down: the error names another sender, the message id tells.
        (
            {0: Error(2, "out of memory")},
            {0: "node .*: error 2: out of memory", 2: "out of memory"},
            1.0,
        ),
        ({1: None}, {1: "no reply before the round's timeout"}, 6 / 4),
    ],
    ids=["client raises", "node dies", "node is silent"],
)
def test_whoever_fails_is_named_and_left_out(broken, failures, mean):
    strategy, (report,) = play_with(broken, **{"min-fit-replies": 0.3})
    assert set(report.failures) == set(failures)
    for client, reason in failures.items():
        assert re.search(reason, report.failures[client])
    assert strategy.theta["w"][0] == pytest.approx(mean)


@pytest.mark.parametrize(("share", "enough"), [(0.66, True), (0.67, False)])
def test_min_fit_replies_is_a_share_of_all_clients(share, enough):
    if enough:  # 2 of 3 replied, 1.98 needed
        play_with({1: "gone"}, **{"min-fit-replies": share})
    else:
        with pytest.raises(RunFailedError, match=r"2 of 3 .* needs 3\. client 1: gone"):
            play_with({1: "gone"}, **{"min-fit-replies": share})


DEAD = Error(0, "<class 'ray.exceptions.ActorDiedError'>:<'killed'>")


def test_a_dead_actor_stops_the_round_whatever_min_fit_replies_allows(monkeypatch):
    monkeypatch.setattr(simulation, "runs", True)
    with pytest.raises(RunFailedError, match=r"clients \[1\].*died|died .*\[1\]"):
        play_with({1: DEAD}, **{"min-fit-replies": 0.1})


def test_no_node_of_a_site_stops_a_run_by_the_words_of_a_dead_actor():
    """A site's node may send any error: it has failed, and the others go on."""
    strategy, (report,) = play_with({1: DEAD}, **{"min-fit-replies": 0.5})
    assert set(report.failures) == {1}
    assert "ActorDied" in report.failures[1]
    assert strategy.theta["w"][0] == pytest.approx(6 / 4)
