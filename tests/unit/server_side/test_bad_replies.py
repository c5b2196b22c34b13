"""Malformed replies of one client: each is its named failure, and nobody else's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import toys
from flwr.app import ConfigRecord, Message, RecordDict
from matrix import mostly_slow
from spoiling import (
    LENIENT,
    VICTIM,
    arrays,
    deliver_with,
    mutations,
    number,
)

from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.wire import Parcel, pack, unpack
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.registry import METHODS
from strategies.round_report import RoundReport
from strategies.rounds import Round

# A method of each strategy and each table of fields, so that it sends all of them.
FOR_SITES = [m for m in METHODS if m in toys.AT_SITES]
ROWS = {(toys.row(m).strategy, METHODS[m].params.FIELDS): m for m in FOR_SITES[::-1]}
RUNS = {m: toys.sends_all(m) for m in ("fedavg", *ROWS.values())}
RUNS["fclg"] = {"embedding.evaluation": "pooled"}


# Every one of them ------------------------------------------------------------------


def spoilt(replies: list[Message], change) -> list[Message]:
    """Copies of a round's replies, the victim's changed."""
    found = []
    for reply in replies:
        content = RecordDict({name: reply.content[name] for name in reply.content})
        if VICTIM in unpack(content)[0]:
            content = change(content)
        other = copy.copy(reply)
        other.__dict__["_content"] = content
        found.append(other)
    return found


def flat(parcels: dict[int, Parcel]) -> dict:
    return {
        (c, name): array.tobytes()
        for c, parcel in parcels.items()
        for name, array in parcel.arrays.items()
    }


def collected(monkeypatch) -> dict[tuple[Phase, str], str]:
    """Offer every mutation to the strategy beside honest replies: what went wrong."""
    collect = Round.collect
    found: dict[tuple[Phase, str], str] = {}

    def offer(self, replies):
        replies, report, phase = list(replies), self.report, self.phase
        server_round, method = report.server_round, self._strategy.settings.method
        made = mutations(method, phase) if server_round in (0, 1, 3) else {}
        honest = None
        for name, change in {"": lambda c: c, **made}.items():
            self.report = RoundReport(server_round=server_round)
            try:
                good = collect(self, spoilt(replies, change))
            except Exception as error:
                found[phase, name] = f"{type(error).__name__}: {error}"
                continue
            failures = self.report.failures
            if honest is None:
                honest = flat(good)
                assert not failures
                continue
            others = {k: v for k, v in honest.items() if k[0] != VICTIM}
            if set(failures) != {VICTIM} or flat(good) != others:
                found[phase, name] = f"accepted, {failures}"
            elif not 0 < len(failures[VICTIM]) < 5000:
                found[phase, name] = "no word" if not failures[VICTIM] else "endless"
            else:
                found[phase, name] = ""
                assert {e.client for e in self.report.evaluations} <= {-1, 0, 1}
                assert {x.client for x in self.report.ledger} <= {-1, 0, 1, 2}
        self.report = report
        return collect(self, replies)

    monkeypatch.setattr(Round, "collect", offer)
    return found


@pytest.mark.parametrize(
    "method", mostly_slow(RUNS, fast=["gcfl", "fedpub", "spreadgnn"])
)
def test_whatever_is_malformed_is_the_failure_of_that_client_alone(
    run, monkeypatch, method, tmp_path
):
    found = collected(monkeypatch)
    asks = ("pooled_evaluation", "raw_features", "statistics")
    shares = toys.policy(tmp_path, **dict.fromkeys(asks, True))
    nodes = [{"partition-id": k, "num-partitions": 3, **shares} for k in range(3)]
    finished = run(
        method, node_configs=nodes, **{"num-server-rounds": 2, **RUNS[method]}
    )
    assert finished.summary["status"] == "completed"
    assert finished.summary["failures"] == []
    wrong = [f"{phase.value}, {k}: {w[:300]}" for (phase, k), w in found.items() if w]
    assert not wrong, "\n".join(wrong)
    assert len(found) > 200


# In a run ---------------------------------------------------------------------------


def failed(content) -> RecordDict:
    return RecordDict(
        {
            "header": content["header"],
            f"{VICTIM}/error": ConfigRecord({"reason": "disk full"}),
            f"{VICTIM}/metrics": content[f"{VICTIM}/metrics"],
        }
    )


def usurp(content) -> RecordDict:
    """Speak for client 0 too, with a model of sevens from a million graphs."""
    own = unpack(content)[0][VICTIM]
    sevens = {n: np.full_like(a, 7) for n, a in own.arrays.items()}
    metrics = {**own.metrics, "num-examples": 10**6}
    return pack({VICTIM: own, 0: Parcel(arrays=sevens, metrics=metrics)})


@pytest.mark.parametrize("method", ["fedavg", "spreadgnn"])
def test_a_spoofed_or_spoilt_reply_counts_as_much_as_none(run, monkeypatch, method):
    hashes = {}
    for name, change in {
        "failed": failed,
        "spoofs client 0": usurp,
        "many examples": number("num-examples", 10**6),
    }.items():
        with monkeypatch.context() as patch:
            deliver_with(patch, change)
            finished = run(method, nodes=3, **LENIENT)
        assert finished.summary["status"] == "completed"
        told = {(f["round"], f["client"]) for f in finished.summary["failures"]}
        assert told == {(1, VICTIM), (2, VICTIM)}, name
        hashes[name] = finished.sha
    assert len(set(hashes.values())) == 1
    words = finished.summary["failures"][0]["reason"]
    assert words == "metric 'num-examples' is 1000000, at roll call it was 18"


def alternating(size, *, beside=False):
    """Numbers of one size and both signs, in all that is floating, or beside models."""

    def change(named):
        for name, array in named.items():
            if array.dtype.kind == "f" and not (beside and name.startswith(SHARED)):
                signs = np.resize([1.0, -1.0], array.size).reshape(array.shape)
                named[name] = (size * signs).astype(array.dtype)
        return named

    return arrays(change)


def filling(value):
    """The same number in all that is floating."""
    return arrays(
        lambda named: {
            n: np.full_like(a, value) if a.dtype.kind == "f" else a
            for n, a in named.items()
        }
    )


def test_huge_numbers_count_as_much_as_none(run, monkeypatch):
    """They made all other clients fail a round later."""
    hashes = set()
    for change in (failed, filling(3e38), alternating(1e7)):
        with monkeypatch.context() as patch:
            deliver_with(patch, change, rounds=(1,))
            finished = run("fedavg", nodes=3, **LENIENT)
        assert finished.summary["status"] == "completed"
        told = [(f["round"], f["client"]) for f in finished.summary["failures"]]
        assert told == [(1, VICTIM)]
        hashes.add(finished.sha)
    assert len(hashes) == 1
    words = finished.summary["failures"][0]["reason"]
    assert "holds numbers as large as 1e+07, where 0." in words
    assert "is usual in this round, and 300 allowed; lower the learning" in words


LARGE = {**RUNS, "fedprox": {}, "fgcl": {}, "fedstar": {}, "adafgl": {}, "moon": {}}
LARGE |= {"self-weight": {}, "gcfl+": {}, "fedavg node-classification": {}}
for sealed in ("local", "spreadgnn"):  # nothing is sent, or nobody can read it
    del LARGE[sealed]


@pytest.mark.parametrize("change", ["alternating", "filling"])
@pytest.mark.parametrize("method", mostly_slow(LARGE, fast=["fedavg", "gcfl"]))
def test_numbers_as_large_as_may_be_stop_no_other_client(
    run, monkeypatch, method, change
):
    spoil = {"alternating": alternating, "filling": filling}[change]
    deliver_with(monkeypatch, spoil(300.0), rounds=(1,))
    finished = run(method, nodes=3, **LENIENT, **LARGE[method])
    assert finished.summary["status"] == "completed"
    assert {f["client"] for f in finished.summary["failures"]} <= {VICTIM}


@pytest.mark.parametrize(
    ("method", "complaint", "is_good"),
    [
        ("fedavg", "silent/0", False),
        ("spreadgnn", "silent/0", True),
        ("spreadgnn", "unusable/1", True),
        ("spreadgnn", f"unusable/{VICTIM}", False),
        ("spreadgnn", "silent/99", False),
    ],
)
def test_clients_complain_of_their_neighbours_alone(
    run, monkeypatch, method, complaint, is_good
):
    deliver_with(monkeypatch, number(complaint, 1), rounds=(1,))
    found = run(method, nodes=3, **LENIENT, **{"num-server-rounds": 1}).summary
    told = [(f["client"], f["reason"]) for f in found["failures"]]
    words = f"metric {complaint!r} is none that clients send here; let a plug-in send"
    words += " numbers of its own as an array"
    assert told == ([] if is_good else [(VICTIM, words)])


def test_a_letter_far_longer_than_others_reaches_nobody(run, monkeypatch):
    """The relay kept it, in checkpoints too, and sent it to every neighbour."""
    padded = arrays(
        lambda named: {n: np.append(a, np.zeros(2**23, "u1")) for n, a in named.items()}
    )
    deliver_with(monkeypatch, padded, rounds=(1,))
    settings = {"spreadgnn.seal": True, "num-server-rounds": 2}
    finished = run("spreadgnn", nodes=3, **LENIENT, **settings)
    told = [(f["round"], f["client"]) for f in finished.summary["failures"]]
    assert told == [(1, VICTIM)]
    assert "are usual in this round" in finished.summary["failures"][0]["reason"]
    down = [int(r["bytes"]) for r in finished.ledger if r["direction"] == "down"]
    assert max(down) < 2**20


def test_a_score_that_was_not_due_is_refused(run, monkeypatch):
    """Else it would be all that rounds are compared by: training might end by it."""
    score = number("eval/val/post_aggregation/accuracy", 1.0)
    deliver_with(monkeypatch, lambda c: number("count/val", 6)(score(c)))
    nodes = "fedavg node-classification"
    finished = run(nodes, nodes=3, **LENIENT, **{"evaluate-every": 3})
    told = {(f["round"], f["client"]) for f in finished.summary["failures"]}
    assert told == {(2, VICTIM)}


def test_no_client_alone_scores_models_on_all_test_sets(run, monkeypatch):
    lie = number("eval/test/post_aggregation/accuracy-on-all", 1.0)
    deliver_with(monkeypatch, lie, rounds=(4,))  # the closing evaluation
    everywhere = {"evaluate-on": "all", "shared-group": "all"}
    finished = run("fedavg", nodes=3, **LENIENT, **everywhere)
    # Nor do the others': without its own score nobody knows that on its test set.
    assert finished.summary["on_all_clients"]["mean"] is None
    assert [f["client"] for f in finished.summary["failures"]] == [VICTIM]
