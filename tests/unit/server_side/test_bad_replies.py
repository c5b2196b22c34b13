"""Malformed replies of one client: each is its named failure, and nobody else's."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable

import numpy as np
import pytest
import toys
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app import MetricRecord as Metrics
from matrix import mostly_slow
from safetensors.numpy import load, save

from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedgmtl import OMEGA
from fedgraph_flwr.privacy import PrivacySettings
from fedgraph_flwr.results.reader import read_rows
from fedgraph_flwr.wire import Parcel, pack, unpack
from simulations.inline import InlineGrid
from strategies.replies import Phase, check_privacy
from strategies.report import RoundReport
from strategies.rounds import Round

VICTIM = 2
LENIENT = {"min-fit-replies": 0.5}
Mutations = dict[str, Callable[[RecordDict], RecordDict]]
RUNS = {
    "fedavg": {},
    "local": {},
    "gcfl+": {"gcfl.seq-source": "last-grad-norm"},
    "fclg": {"embedding.evaluation": "pooled"},
    "fedgkd": {},
    "fedgta": {},
    "fedpub": {},
    "fedgmtl": {},
    "spreadgnn": {},
    "fedsage+": {"fedsage-plus.cross-client": True},
}


# How replies are spoilt -------------------------------------------------------------


def put(name, record, *, drop=""):
    """Set one record of a message, and drop another."""

    def change(content):
        content[name] = record
        content.pop(drop, None)
        return content

    return change


def without(kind):
    def change(content):
        del content[f"{VICTIM}/{kind}"]
        return content

    return change


def number(name, value):
    """Let the victim report another number, or none at all."""

    def change(content):
        numbers = dict(content[f"{VICTIM}/metrics"])
        numbers.pop(name, None)
        told = {} if value is None else {name: value}
        content[f"{VICTIM}/metrics"] = Metrics({**numbers, **told})
        return content

    return change


def packed(blob) -> ConfigRecord:
    return ConfigRecord({"safetensors": blob})


def blob(change, kind="arrays"):
    """Change the bytes that hold the victim's arrays."""

    def spoil(content):
        name = f"{VICTIM}/{kind}"
        content[name] = packed(change(content[name]["safetensors"]))
        return content

    return spoil


def arrays(change, kind="arrays"):
    """Change the victim's named arrays."""
    return blob(lambda b: save(change(dict(load(b)))), kind)


def first(change, kind="arrays"):
    """Change the first of them, a floating one where there is any."""

    def spoil(named):
        names = sorted(n for n, a in named.items() if a.dtype.kind == "f" and a.size)
        name = (names or sorted(named))[0]
        named[name] = np.ascontiguousarray(change(named[name].copy()))
        return named

    return arrays(spoil, kind)


def filled(value):
    def change(array):
        array.flat[0] = value
        return array

    return change


def renamed(named):
    name = sorted(named)[0]
    return {**{n: a for n, a in named.items() if n != name}, name + "x": named[name]}


def fewer(named):
    return {n: named[n] for n in sorted(named)[1:]}


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def giant() -> bytes:
    text = b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}'
    return len(text).to_bytes(8, "little") + text + bytes(4)


def structural() -> Mutations:
    """Of any message, whatever was asked for."""
    one = Metrics({"num-examples": 1})
    found = {
        "nothing": lambda _: RecordDict(),
        "no header": lambda c: RecordDict({k: c[k] for k in c if k != "header"}),
        "other header": put("header", one),
        "no parcel": lambda c: RecordDict({"header": c["header"]}),
        "no metrics": without("metrics"),
        "metrics of another type": put(f"{VICTIM}/metrics", ConfigRecord({"a": 1})),
        "arrays of another type": put(f"{VICTIM}/arrays", one),
        "facts of another type": put(f"{VICTIM}/facts", one),
        "evaluation of another type": put(f"{VICTIM}/evaluation", one),
        "error of another type": put(f"{VICTIM}/error", one),
        "error and arrays": put(f"{VICTIM}/error", ConfigRecord({"reason": "a"})),
    }
    names = [
        "x",
        "2",
        "2/",
        "/metrics",
        "2/other",
        "02/metrics",
        "2/metrics/",
        "٢/facts",
    ]
    names += ["-1/metrics", "+2/metrics", " 2/metrics", "2 /metrics", "²/metrics"]
    names += ["9" * 4000 + "/metrics", "9" * 5000 + "/metrics", "1234567890/facts"]
    names += ["2/METRICS", "2/metrics\n", "2\n/metrics", "0x2/metrics", "2.0/metrics"]
    found |= {f"record {n[:20]!r} {len(n)}": put(n, one) for n in names}
    for stranger in (0, 1, 3, 99, 1099):
        spoof = pack({stranger: Parcel(metrics={"num-examples": 10**6})})
        found[f"speaks for {stranger}"] = put(
            f"{stranger}/metrics", spoof[f"{stranger}/metrics"]
        )
    found["speaks for a thousand"] = lambda c: RecordDict(
        {**c, **{f"{k}/metrics": one for k in range(100, 1100)}}
    )
    reasons = {"none": {}, "number": {"reason": 3}, "bytes": {"reason": b"x"}}
    reasons |= {"list": {"reason": ["a"]}, "empty": {"reason": ""}}
    reasons |= {"endless": {"reason": "x" * 10**6}}
    reasons |= {"actor": {"reason": "<class 'ray.exceptions.ActorDiedError'>"}}
    for name, reason in reasons.items():
        found[f"reason: {name}"] = lambda c, r=reason: RecordDict(
            {
                "header": c["header"],
                f"{VICTIM}/error": ConfigRecord(dict(r)),
                f"{VICTIM}/metrics": c[f"{VICTIM}/metrics"],
            }
        )
    facts = {"bytes": b"x", "list": [1], "text": "x", "long text": "x" * 10**5}
    facts |= {"flag": True}
    for name, value in facts.items():
        record = ConfigRecord({f"fact-{name}": value})
        found[f"fact: {name}"] = put(f"{VICTIM}/facts", record)
    bad = [math.nan, math.inf, -1.0, [1.0], None, 1e300]
    for name in ("compute-s", "started-at"):
        found |= {f"{name} = {v}": number(name, v) for v in bad}
    for name in ("x", "eval", "eval/x", "count", "privacy/", "x" * 10**5, "accuracy"):
        found[f"metric {name[:20]}"] = number(name, 1)
    found |= {
        f"{name} = {v}": number(f"privacy/{name}", v)
        for name, v in {
            "update-epsilon": 1.0,
            "edge-epsilon": 1.0,
            "secret": 1.0,
            "other": 1.0,
            "update-delta": math.nan,
        }.items()
    }
    return found


def of_arrays(kind="arrays") -> Mutations:
    """Of a record of arrays."""
    name = f"{VICTIM}/{kind}"
    two = ConfigRecord(dict.fromkeys(("safetensors", "b"), save({})))
    found = {
        "gone": without(kind),
        "truncated": blob(lambda b: b[: len(b) // 2], kind),
        "flipped": blob(lambda b: bytes([b[0] ^ 255]) + b[1:], kind),
        "empty": blob(lambda _: b"", kind),
        "random": blob(lambda _: np.random.default_rng(0).bytes(99), kind),
        "endless header": blob(lambda b: b"\xff" * 8 + b[8:], kind),
        "none packed": put(name, ConfigRecord()),
        "two packed": put(name, two),
        "another name": put(name, ConfigRecord({"x": save({})})),
        "a text": put(name, packed("abc")),
        "a list": put(name, packed([b"abc"])),
        "a record of Flower's": put(name, ArrayRecord({"w": Array(np.zeros(9))})),
        "garbage": put(name, packed(b"garbage")),
        "no bytes": put(name, packed(b"")),
        "an archive": put(name, packed(npz())),
        "giant": put(name, packed(giant())),
        "fewer": arrays(fewer, kind),
        "more": arrays(lambda n: {**n, "more": np.zeros(1, np.float32)}, kind),
        "renamed": arrays(renamed, kind),
        "flat": first(lambda a: np.append(a.ravel(), a.ravel()), kind),
        "another axis": first(lambda a: a[None], kind),
        "scalar": first(lambda a: a.ravel()[0], kind),
        "no entries": first(lambda a: a[:0], kind),
    }
    dtypes = ("float16", "float64", "int64", "int32", "int8", "bool", "complex64")
    for dtype in dtypes[:-1]:
        found[dtype] = first(lambda a, d=dtype: a.astype(d), kind)
    return {f"{kind}: {name}": change for name, change in found.items()}


def of_floats(kind="arrays") -> Mutations:
    """Of arrays that hold floating numbers."""
    values = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
    return {f"{kind}: {n}": first(filled(v), kind) for n, v in values.items()}


def of_size(*values: float) -> Mutations:
    """Of numbers that no trained network has, in the last array: a model's."""

    def fill(value):
        return arrays(lambda n: {**n, max(n): np.full_like(n[max(n)], value)})

    return {f"filled with {value:g}": fill(value) for value in (*values, -3e38)}


def of_metrics() -> Mutations:
    """Of what is measured in training or at the end."""
    values = [-5, 0, 12_000, 10**18, 0.5, 1e308, math.nan, math.inf, -math.inf, 1]
    values += [None, [3], float(2**40), 10**400]
    found = {f"num-examples = {str(v)[:9]}": number("num-examples", v) for v in values}
    names = [
        "eval/a/b/c/d",
        "eval/test/post_aggregation",
        "eval/dev/post_training/loss",
    ]
    names += ["eval/test/update/loss", "eval/test/post_aggregation/x", "count/dev"]
    names += ["eval/test/post_aggregation/LOSS", "eval/test/post_aggregation/ari-x"]
    names += ["eval/test/post_aggregation/roc-auc-task-99999"]
    # Alone, it would be the score of all; nobody was asked for it.
    names += ["eval/test/post_aggregation/accuracy-on-all"]
    names += ["eval/test/post_aggregation/roc-auc-task-" + "9" * 5000]
    found |= {f"{n[:60]}": number(n, 0.5) for n in names}
    at = "eval/test/post_aggregation"
    for metric in ("accuracy", "roc-auc"):
        for value in (math.nan, math.inf, -0.1, 1.5, 1e308, [0.5], 10**400):
            key = f"{metric} = {str(value)[:9]}"
            found[key] = number(f"{at}/{metric}", value)
    found |= {f"mae = {v}": number(f"{at}/mae", v) for v in (-1.0, math.nan, 1e308)}
    found |= {f"loss = {v}": number(f"{at}/loss", v) for v in (math.nan, math.inf)}
    for value in (math.nan, math.inf, -1, 10**9, 0.5, [3], 3.0, 10**400):
        found[f"count = {str(value)[:9]}"] = number("count/test", value)
    return found


def no_count() -> Mutations:
    return {"count missing": number("count/test", None)}


def of_embeddings() -> Mutations:
    kind = "evaluation"
    changes = {
        "labels 0-d": lambda n: {**n, "labels": np.array(1)},
        "labels of floats": lambda n: {**n, "labels": n["labels"].astype("f4")},
        "labels out of range": lambda n: {**n, "labels": n["labels"] + 9},
        "labels below 0": lambda n: {**n, "labels": n["labels"] - 9},
        "fewer labels": lambda n: {**n, "labels": n["labels"][1:].copy()},
        "all shorter": lambda n: {k: a[1:].copy() for k, a in n.items()},
        "wide": lambda n: {**n, "embeddings": np.zeros((30, 99), np.float32)},
        "narrow": lambda n: {**n, "embeddings": np.zeros((30, 0), np.float32)},
        "flat": lambda n: {**n, "embeddings": np.zeros(30, np.float32)},
    }
    found = {f"{kind}: {n}": arrays(c, kind) for n, c in changes.items()}
    return {**of_arrays(kind), **of_floats(kind), **found}


def of_omega() -> Mutations:
    kind = "evaluation"
    omega, ids = "task-covariance", "task-ids"
    changes = {
        "not square": lambda n: {**n, omega: np.zeros((2, 3), np.float32)},
        "too large": lambda n: {**n, omega: np.eye(9, dtype=np.float32)},
        "ids beyond": lambda n: {**n, ids: n[ids] + 99},
        "ids below": lambda n: {**n, ids: n[ids] - 99},
        "ids twice": lambda n: {**n, ids: n[ids] * 0},
        "ids descending": lambda n: {**n, ids: n[ids][::-1].copy()},
        "ids of floats": lambda n: {**n, ids: n[ids].astype("f4")},
        "ids 0-d": lambda n: {**n, ids: np.array(0)},
    }
    found = {f"{kind}: {n}": arrays(c, kind) for n, c in changes.items()}
    return {**of_arrays(kind), **of_floats(kind), **found}


def of_shared_omega() -> Mutations:
    name = SHARED + OMEGA
    changes = {
        "trace 0": lambda a: np.diag([1e5] + [0] * (len(a) - 2) + [-1e5]),
        "trace -1": lambda a: -a,
        "trace 1, large": lambda a: a + 9 * (1 - np.eye(len(a))),
        "trace 2": lambda a: 2 * a,
    }

    def put_in(change):
        return arrays(lambda n: {**n, name: change(n[name]).astype(n[name].dtype)})

    return {f"omega of {what}": put_in(change) for what, change in changes.items()}


def of_mail() -> Mutations:
    def to(name):
        return arrays(lambda n: {**n, f"to/{name}": np.zeros(60, np.uint8)})

    found = of_arrays()
    for name in ("flat", "scalar", "no entries"):  # the relay opens no letter
        del found[f"arrays: {name}"]
    strangers = {f"mail to {name}": to(name) for name in (0, 1, 2, 7, "x", "")}
    return {**found, **strangers}


def of_closing() -> Mutations:
    found = {
        f"hash {str(value)[:9]}": put(
            f"{VICTIM}/facts", ConfigRecord({"weights-sha256": value})
        )
        for value in ("", "a" * 63, "A" * 64, "g" * 64, "a" * 65, 3, "a" * 64 + "\n")
    }
    found["no hash"] = without("facts")
    found["a model"] = put(f"{VICTIM}/arrays", packed(save({"w": np.zeros(2)})))
    trained = "eval/test/post_training/loss"
    return {**found, "trained": number(trained, 0.5), **of_metrics()}


def mutations(method: str, phase: Phase) -> Mutations:
    if phase is Phase.OPENING:
        return {**structural(), **of_arrays(), **of_floats(), **of_size(1e16)}
    if phase is Phase.CLOSING:
        found = {**structural(), **of_closing()}
        if method != "fclg":
            return {**found, **no_count()}
        del found["num-examples = 0"]  # its number of test graphs
        return {**found, **of_embeddings()}
    own: Mutations = {}
    if method in ("fedavg", "gcfl+", "fclg", "fedgkd", "fedpub", "fedgmtl", "fedsage+"):
        own = {**of_arrays(), **of_floats(), **of_size(1e7)}
    if method == "spreadgnn":
        own = {**of_mail(), **of_omega()}
    if method == "fclg":
        own |= of_embeddings()
    elif method != "spreadgnn":
        unasked = packed(save({"task-covariance": np.eye(2, dtype=np.float32)}))
        own["evaluation"] = put(f"{VICTIM}/evaluation", unasked)
    if method == "fedgmtl":
        own |= {**of_omega(), **of_shared_omega()}
    if method == "gcfl+":
        bad = (math.nan, math.inf, -1.0, [1.0], 1e308)
        own |= {f"gradient {v}": number("grad-norm", v) for v in bad}
    return {**structural(), **of_metrics(), **own}


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
    "method", mostly_slow(RUNS, fast=["gcfl+", "fedpub", "spreadgnn"])
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


def deliver_with(monkeypatch, change, *, rounds=(1, 2)) -> None:
    """Let the victim's node reply something else in some rounds of training."""
    deliver = InlineGrid.deliver

    def spoil(self, message):
        reply = deliver(self, message)
        asked, header = unpack(message.content)
        if VICTIM in asked and header.get("server-round") in rounds:
            return Message(change(reply.content), reply_to=message)
        return reply

    monkeypatch.setattr(InlineGrid, "deliver", spoil)


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


@pytest.mark.parametrize("method", ["fedavg", "gcfl+", "spreadgnn", "fedgmtl"])
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
    for change in (failed, filling(3e38), filling(301.0), alternating(1e7)):
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
LARGE |= {"self-weight": {}, "gcfl": {}, "fedavg node-classification": {}}
for sealed in ("local", "spreadgnn"):  # nothing is sent, or nobody can read it
    del LARGE[sealed]


@pytest.mark.parametrize("change", ["alternating", "filling"])
@pytest.mark.parametrize("method", mostly_slow(LARGE, fast=["fedavg", "gcfl+"]))
def test_numbers_as_large_as_may_be_stop_no_other_client(
    run, monkeypatch, method, change
):
    spoil = {"alternating": alternating, "filling": filling}[change]
    deliver_with(monkeypatch, spoil(300.0), rounds=(1,))
    finished = run(method, nodes=3, **LENIENT, **LARGE[method])
    assert finished.summary["status"] == "completed"
    assert {f["client"] for f in finished.summary["failures"]} <= {VICTIM}


@pytest.mark.parametrize("method", ["fedgkd", "fedgta", "fedpub"])
def test_huge_numbers_beside_the_model_stop_no_other_client(run, monkeypatch, method):
    deliver_with(monkeypatch, alternating(3e38, beside=True))
    finished = run(method, nodes=3, **LENIENT)
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
    words = f"metric {complaint!r} is none that clients send here"
    assert told == ([] if is_good else [(VICTIM, words)])


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
    found = finished.summary["on_all_clients"]
    assert set(found["per_client"]) == {"0", "1"}
    assert found["mean"] < 1.0
    assert [f["client"] for f in finished.summary["failures"]] == [VICTIM]


def test_a_long_reason_of_a_methods_own_can_be_read_back(once, monkeypatch):
    said = "x" * 200_000  # longer than a cell that Python's reader of CSV files takes

    def misfits(self, replies):
        return {VICTIM: said} if VICTIM in replies else {}

    monkeypatch.setattr("strategies.fedavg.FedAvg.misfits", misfits)
    finished = once("fedavg", **LENIENT)
    rows = list(read_rows(finished.path / "failures.csv"))
    assert {int(row[1]) for row in rows} == {VICTIM}
    assert all(len(row[2]) < 4100 for row in rows)
    assert "xxx" in rows[0][2]


# What is remembered ------------------------------------------------------------------


def spent(**changes) -> dict[str, float]:
    told = {"edge-draws": 2, "edge-epsilon": 3.0, "edge-epsilon-lifetime": 4.0}
    told["edge-epsilon-site"] = 3.0
    return {f"privacy/{k}": v for k, v in {**told, "secret": 1.0, **changes}.items()}


EDGES = PrivacySettings(edge_epsilon=1.0, edge_post="none")
OF_UPDATES = PrivacySettings(update_clip=1.0, edge_post="none")


def check(metrics, before, *, of_run=EDGES, **named):
    return check_privacy(7, metrics, before, of_run=of_run, **named)


def test_privacy_that_was_spent_stays_spent():
    before, problem = check(spent(), {})
    assert problem == ""
    more, problem = check(spent(**{"edge-epsilon": 3.5}), before)
    assert (more["edge-epsilon"], problem) == (3.5, "")
    kept, problem = check(spent(**{"edge-epsilon": 1.0}), more)
    assert kept == more
    assert problem.startswith(
        "the ledger of client 7 says less than before: edge-epsilon was 3.5, is 1"
    )
    kept, problem = check({}, more)
    assert kept == more
    assert "says less than before: edge-draws was 2, is missing" in problem
    assert check({}, more, is_failure=True) == (more, "")
    exposed, problem = check(spent(secret=0.0), more)
    assert exposed["secret"] == 0.0
    assert check(spent(), exposed)[0]["secret"] == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_privacy_that_is_no_number_is_not_kept(value):
    before, _ = check(spent(), {})
    kept, problem = check(spent(**{"edge-epsilon": value}), before)
    assert kept == before
    assert "is malformed: edge-epsilon is" in problem


UPDATES = {"privacy/update-epsilon": 1.0, "privacy/update-delta": 0.1}


@pytest.mark.parametrize(
    ("of_run", "told", "name"),
    [
        (None, spent(), "edge-draws"),
        (OF_UPDATES, spent(), "edge-draws"),
        (EDGES, {**spent(), **UPDATES}, "update-delta"),
        (None, {**UPDATES, "privacy/secret": 1}, "update-delta"),
    ],
)
def test_privacy_that_the_run_does_not_protect_is_not_kept(of_run, told, name):
    kept, problem = check(told, {}, of_run=of_run)
    assert kept == {}
    assert problem.startswith(f"client 7 reports ['{name}'")


def test_no_client_makes_a_run_claim_privacy(run, monkeypatch):
    def boast(content):
        for name, value in spent().items():
            content = number(name, value)(content)
        return content

    deliver_with(monkeypatch, boast)
    found = run("fedavg", nodes=3, **LENIENT).summary
    assert found["privacy"] is None
    told = {(f["round"], f["client"]) for f in found["failures"]}
    assert told == {(1, VICTIM), (2, VICTIM)}
