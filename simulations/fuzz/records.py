"""Faults in the records of a message."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from safetensors.numpy import load, save

from fedgraph_flwr.methods.spreadgnn import FROM
from fedgraph_flwr.wire import (
    COMPUTE_S,
    EXPERIMENT,
    NUM_EXAMPLES,
    SERVER_ROUND,
    SPLIT_HASH,
    STARTED_AT,
    WEIGHTS_HASH,
)

from .mutations import HUGE, TEXTS, of_bytes

_PACKED = "safetensors"
_ODD: tuple[Any, ...] = (math.nan, math.inf, -math.inf, -5, 0, 0.5, 1e308, 1e18, *HUGE)
_NAMES = (
    "x",
    "{c}",
    "{c}/other",
    "99/metrics",
    "4/metrics",
    "0/metrics",
    "0{c}/metrics",
    "١/metrics",
    "-1/metrics",
    "9" * 4000 + "/metrics",
    "9" * 5000 + "/metrics",
    "/",
    "",
)
_METRICS = (
    "eval/x",
    "eval/val/post_training/accuracy/more",
    "eval/nowhere/post_training/accuracy",
    "eval/val/post_aggregation/accuracy",
    "eval/val/post_aggregation/roc-auc",
    "eval/test/post_training/no-such-metric",
    "count/val",
    "privacy/update-epsilon",
    "privacy/edge-epsilon",
    NUM_EXAMPLES,
    COMPUTE_S,
    STARTED_AT,
)
_TYPES = ("float16", "float64", "int64", "int8", "uint8", "bool")


def disturb(
    rng: random.Random, content: RecordDict, client: int, *, is_reply: bool
) -> str:
    """Make one thing wrong in a message's content; say what."""
    names = [_drop, _rename, _spoof, _blob, _blob, _arrays, _arrays, _header, _facts]
    names += [_metric, _metric, _metric, _error] if is_reply else [_header, _header]
    change: Callable[[random.Random, RecordDict, int], str] = rng.choice(names)
    try:
        return change(rng, content, client)
    except (TypeError, ValueError, OverflowError) as error:
        # Flower's records refuse it before it could be sent.
        return f"{change.__name__[1:]}: nothing, {error}"[:80]


def _drop(rng: random.Random, content: RecordDict, client: int) -> str:  # noqa: ARG001
    name = rng.choice(sorted(n for n in content if not _is_mail(content, n)))
    del content[name]
    return f"no record {name}"


def _is_mail(content: RecordDict, name: str) -> bool:
    """Whether a record is mail of neighbours, which may be missing in every round."""
    record = content[name]
    if not isinstance(record, ConfigRecord) or _PACKED not in record:
        return False
    return any(key.startswith(FROM) for key in load(_read(content, name)))


def _rename(rng: random.Random, content: RecordDict, client: int) -> str:
    name = rng.choice(sorted(content))
    new = rng.choice(_NAMES).format(c=client)
    kind = name.rpartition("/")[2]
    new = new.replace("metrics", kind) if "/" in name else new
    content[new] = content.pop(name)
    return f"record {name} called {new[:20]!r}"


def _spoof(rng: random.Random, content: Any, client: int) -> str:
    """Speak for another client too."""
    other = rng.choice(["0", "3", "4", "99", f"0{client}", "١"])
    for name, record in sorted(content.items()):
        if name.startswith(f"{client}/"):
            content[f"{other}/{name.partition('/')[2]}"] = record
    return f"the same for client {other}"


def _metric(rng: random.Random, content: RecordDict, client: int) -> str:
    metrics = content.get(f"{client}/metrics")
    assert isinstance(metrics, MetricRecord)
    new = rng.choice(
        [*_ODD, [1.0, 2.0], [], True, "drop"] if rng.random() < 0.8 else ["many"]
    )
    name = rng.choice([*_METRICS, *sorted(metrics), *sorted(metrics)])
    if new == "drop":
        name = rng.choice(sorted(metrics))
        del metrics[name]
    elif new == "many":
        for k in range(10_000):
            metrics[f"eval/val/post_training/m{k}"] = 0.5
    else:
        metrics[name] = new
    return f"metric {name} = {str(new)[:20]}"


def _facts(rng: random.Random, content: RecordDict, client: int) -> str:
    name = f"{client}/facts"
    facts: Any = content.get(name, ConfigRecord({}))
    key = rng.choice(
        [
            *sorted(facts),
            SPLIT_HASH,
            "tasks",
            "task-ids",
            WEIGHTS_HASH,
            "told/key",
        ]
    )
    if key in facts and rng.random() < 0.3:
        del facts[key]
        content[name] = facts
        return f"no fact {key}"
    facts[key] = rng.choice([*TEXTS, 1, 0.5, True, b"x", [1, 2], "[" * 100_000])
    content[name] = facts
    return f"fact {key} = {str(facts[key])[:20]!r}"


def _error(rng: random.Random, content: RecordDict, client: int) -> str:
    reasons: list[dict[str, Any]] = [{}, {"reason": ""}, {"reason": 1}]
    reasons += [{"reason": "ActorDiedError: gone"}, {"reason": "x" * 1_000_000}]
    reasons += [{"reason": "DataError: [red]\x1b[2J\n\nround 3: all is well"}]
    content[f"{client}/error"] = ConfigRecord(rng.choice(reasons))
    return f"error {str(dict(content[f'{client}/error']))[:40]}"


def _header(rng: random.Random, content: RecordDict, client: int) -> str:  # noqa: ARG001
    header = content.get("header", ConfigRecord({}))
    key = rng.choice([SERVER_ROUND, EXPERIMENT, "error", "x"])
    names = ["..", "../../canary/round", "a/b", "privacy-lifetime", "\x00", "y" * 300]
    header[key] = rng.choice([*TEXTS, *names, *_ODD, [1], b"x"])
    content["header"] = header
    return f"header {key} = {str(header[key])[:20]!r}"


def _record(rng: random.Random, content: RecordDict, client: int) -> str:
    """Name of an array record of the client; if there is none, it is made."""
    kinds = [f"{client}/{kind}" for kind in ("arrays", "evaluation")]
    found = [name for name in kinds if name in content]
    if not found:
        content[kinds[0]] = _packed(save({"model/x": np.zeros(2, np.float32)}))
        return kinds[0]
    return rng.choice(found)


def _packed(blob: bytes, name: str = _PACKED) -> ConfigRecord:
    return ConfigRecord({name: blob})


def _read(content: RecordDict, name: str) -> bytes:
    record = content[name]
    assert isinstance(record, ConfigRecord)
    blob = record[_PACKED]
    assert isinstance(blob, bytes)
    return blob


def _blob(rng: random.Random, content: RecordDict, client: int) -> str:
    name = _record(rng, content, client)
    blob = _read(content, name)
    how = rng.choice(["bytes", "bytes", "size", "shape", "name", "type"])
    if how == "bytes":
        sent = blob
        how, blob = of_bytes(rng, sent)
        while _is_like(blob, sent):  # other numbers are no malformed message
            how, blob = of_bytes(rng, sent)
    elif how == "size":  # of the JSON header: up to 2^63 bytes
        blob = rng.choice(HUGE[:3]).to_bytes(8, "little") + blob[8:]
    elif how == "shape":
        text = b'{"x":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4]}}'
        blob = len(text).to_bytes(8, "little") + text + bytes(4)
    content[name] = _packed(blob, "other" if how == "name" else _PACKED)
    if how == "type":
        values: list[Any] = ["text", 3, [b"x"]]
        content[name] = ConfigRecord({_PACKED: rng.choice(values)})
    return f"blob of {name}: {how}"


def _is_like(blob: bytes, sent: bytes) -> bool:
    """Whether a blob has the layout that was sent, and finite numbers."""
    try:
        found, expected = load(blob), load(sent)
    except Exception:  # strange bytes raise many kinds
        return False
    layout = [
        {k: (v.shape, v.dtype) for k, v in arrays.items()}
        for arrays in (found, expected)
    ]
    return layout[0] == layout[1] and all(np.isfinite(v).all() for v in found.values())


def _arrays(rng: random.Random, content: RecordDict, client: int) -> str:
    name = _record(rng, content, client)
    arrays = {k: np.array(v) for k, v in load(_read(content, name)).items()}
    key = rng.choice(sorted(arrays))
    how = rng.choice(["nan", "inf", "shape", "drop", "more", "type", "empty", "scalar"])
    if how == "drop" and _is_mail(content, name):
        how = "more"
    if how == "drop":
        del arrays[key]
    elif how == "more":
        arrays[rng.choice(["", "x", "model/" + "y" * 300])] = arrays[key]
    elif how == "type":
        how = rng.choice(_TYPES)
        arrays[key] = arrays[key].astype(how)
    elif how in ("nan", "inf"):
        arrays[key] = np.full_like(arrays[key], float(how), dtype=np.float32)
    elif how == "shape":
        arrays[key] = rng.choice([arrays[key].ravel()[:1], arrays[key][None]])
    else:
        arrays[key] = np.zeros((0,) if how == "empty" else (), arrays[key].dtype)
    content[name] = _packed(save(arrays))
    return f"array {key} of {name}: {how}"
