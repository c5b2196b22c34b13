"""Sites that are late: when a round stops waiting, and by which name they are told."""

from __future__ import annotations

import time

import numpy as np
import pytest
import toys
from flwr.app import Message
from plays import play

from fedgraph_flwr.core.errors import ConfigError, RunFailedError
from fedgraph_flwr.core.wire import SITE, Parcel, pack, unpack
from simulations.inline import InlineGrid

_COUNTS = ("num-train", "num-val", "num-test", "num-features", "num-classes")
SITES = {0: "north", 1: "west", 2: "south"}


class Sites(InlineGrid):
    """A node for each client; ``delays`` in seconds after which it has answered.

    ``broken``: what a client sends in place of a good reply. ``one_by_one``: who trains
    answers no roll call.
    """

    def __init__(
        self,
        delays: dict[int, float],
        broken: dict[int, Parcel],
        *,
        one_by_one: bool = True,
    ) -> None:
        self.delays, self.broken, self.one_by_one = delays, broken, one_by_one
        self.ready_at: dict[str, float] = {}
        self.busy_until: dict[int, float] = {}
        nodes = [{"clients": c} for c in SITES]
        super().__init__(self.answer, nodes, run_config={}, run_id=1)

    def answer(self, message: Message, context) -> Message:
        client = context.node_config["clients"]
        key = message.metadata.message_id
        if self.one_by_one:
            self.ready_at[key] = self.busy_until.get(client, 0.0)
        if message.metadata.message_type == "query":
            parcel = Parcel(
                metrics={**dict.fromkeys(_COUNTS, 1), "group": 1},
                facts={"split-hash": "", "raw-sha256": "", SITE: SITES[client]},
            )
            return Message(pack({client: parcel}), reply_to=message)
        self.busy_until[client] = time.monotonic() + self.delays.get(client, 0.0)
        self.ready_at[key] = self.busy_until[client]
        assert list(unpack(message.content)[0]) == [client]
        good = Parcel(
            arrays={"shared/w": np.float32([client, 1])},
            metrics={"num-examples": 1, "compute-s": 0.0, "started-at": 0.0},
        )
        return Message(pack({client: self.broken.get(client, good)}), reply_to=message)

    def pull_messages(self, message_ids):
        now = time.monotonic()
        ready = [i for i in message_ids if self.ready_at.get(i, 0.0) <= now]
        return super().pull_messages(ready)


def play_at(
    delays=(), broken=(), *, rounds=1, one_by_one=True, before=lambda *_: None, **config
):
    """Train, with ``before(grid, round)``; return strategy, reports and seconds."""
    settings = {
        "num-server-rounds": rounds,
        "round-timeout-s": 60.0,
        "min-fit-replies": 0.6,
        "late-after-s": 0.2,
        **config,
    }
    grid = Sites(dict(delays), dict(broken), one_by_one=one_by_one)

    def answers(strategy, messages):
        return strategy.exchange(grid, messages, settings["round-timeout-s"])

    begin = time.monotonic()
    strategy, reports = play(grid, answers, rounds=rounds, before=before, **settings)
    return strategy, reports, time.monotonic() - begin


def test_a_round_waits_for_a_late_site_no_longer_than_it_says():
    strategy, (report,), seconds = play_at({1: 600.0})
    assert report.failures == {1: "no reply within late-after-s = 0.2 of the others"}
    assert 0.2 <= seconds < 30
    assert strategy.theta["w"][0] == 1.0  # of clients 0 and 2


def test_without_the_setting_a_round_waits_for_its_timeout():
    settings = {"late-after-s": 0.0, "round-timeout-s": 0.4}
    _, (report,), seconds = play_at({1: 600.0}, **settings)
    assert report.failures == {1: "no reply before the round's timeout"}
    assert seconds >= 0.4


def test_a_late_site_is_told_by_name_and_not_waited_for_twice(caplog):
    strategy, reports, seconds = play_at({1: 600.0}, rounds=3, **{"late-after-s": 0.1})
    words = "(west) did not answer within late-after-s = 0.1 of the others"
    assert caplog.text.count(words) == 1
    assert [r.failures[1] for r in reports[1:]] == [
        "has not answered since round 1"
    ] * 2
    assert seconds < 30
    assert strategy.sites == SITES


HANGING = {"late-after-s": 0.0, "round-timeout-s": 0.4, "one_by_one": False}


def test_a_site_that_answers_roll_calls_but_never_trains_costs_one_timeout():
    _, reports, seconds = play_at({1: 600.0}, rounds=6, **HANGING)
    assert seconds < 1.5  # six timeouts are 2.4 s
    assert [r.failures[1] for r in reports] == [
        "no reply before the round's timeout",
        *["has not answered since round 1"] * 5,
    ]


def test_a_site_that_was_late_takes_part_again_when_it_has_answered():
    def mend(grid: Sites, number: int) -> None:
        grid.delays[1] = 600.0 if number < 2 else 0.05
        if number == 2:  # its reply of round 1 has come
            grid.ready_at.clear()

    _, reports, _ = play_at(rounds=2, before=mend, **HANGING)
    assert [set(r.failures) for r in reports] == [{1}, set()]


def test_a_failure_names_its_site(caplog):
    settings = {"min-fit-replies": 1.0, "late-after-s": 0.0}
    with pytest.raises(RunFailedError, match=r"client 2 \(south\): disk full\."):
        play_at((), {2: Parcel(error="disk full")}, **settings)
    assert "round 1, failed: client 2 (south): disk full" in caplog.text


@pytest.mark.slow
def test_only_good_replies_make_a_quorum():
    """Else a broken site would cut off a late one whose reply the round needs."""
    for bad in (Parcel(error="disk full"), Parcel(arrays={"x": np.zeros(1)})):
        _, (report,), seconds = play_at({1: 0.5}, {2: bad})
        assert set(report.failures) == {2}
        assert seconds >= 0.5


def test_a_deadline_after_everybody_is_refused():
    with pytest.raises(ConfigError, match="late-after-s is 5, but min-fit-replies is"):
        toys.resolved(**{"late-after-s": 5.0})
