"""Replies of one client, spoilt in every way that tests know."""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app import MetricRecord as Metrics
from safetensors.numpy import load, save

from fedgraph_flwr.core.fields import Phase
from fedgraph_flwr.core.wire import Parcel, pack, unpack
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedgmtl import OMEGA
from simulations.inline import InlineGrid

VICTIM = 2
LENIENT = {"min-fit-replies": 0.5}
Mutations = dict[str, Callable[[RecordDict], RecordDict]]


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
        names = sorted(
            n for n, a in named.items() if a.dtype.kind == "f" and a.size > 1
        )
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
    if method not in ("local", "spreadgnn"):  # nothing is sent, or letters
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
    if method == "gcfl":
        bad = (math.nan, math.inf, -1.0, [1.0], 1e308)
        own |= {f"gradient {v}": number("grad-norm", v) for v in bad}
    return {**structural(), **of_metrics(), **own}
