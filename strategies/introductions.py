"""Reads clients' answers to the roll call, and compares them with earlier ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from fedgraph_flwr.common_fields import COMMON
from fedgraph_flwr.core.fields import Field, Kind, find
from fedgraph_flwr.errors import WireError
from fedgraph_flwr.wire import (
    CLASS_COUNT,
    IDENTITY,
    RAW_HASH,
    SITE,
    SPLIT_HASH,
    TIMING,
    TOLD,
    TRAIN_COUNT,
    Parcel,
    Scalar,
    select,
)
from fedgraph_flwr.wording import SITE_NAME_WORDS, is_site_name, shortened, visible

from .report import ClientInfo

_COUNTS = ("num-train", "num-val", "num-test", "num-features", "num-classes")
_LARGEST = 2**53
_MOST, _LONGEST = 100_000, 1000  # tasks, and characters of a text
_MOST_TEXT = 2**20  # characters of all names and texts: every checkpoint holds them
# The server makes the model that training starts from, as wide as a client says.
_WIDTHS = {"num-features": 1_000_000, "num-classes": _MOST}
_HASH = re.compile("(?:[0-9a-f]{64})?")
_TEXTS = (SPLIT_HASH, RAW_HASH, IDENTITY, "tasks", "task-ids", SITE)
_LASTING: Mapping[str, str] = {  # what a client must not change within a run
    "split_hash": "split hash",
    "raw_sha256": "hash of its data",
    "identity": "identity",
    "num_train": "number of training examples",
    "num_val": "number of validation examples",
    "num_test": "number of test examples",
    "num_features": "number of features",
    "num_classes": "number of classes",
    "tasks": "tasks",
    "task_ids": "own tasks",
}


def read_introduction(client: int, node: int, parcel: Parcel) -> ClientInfo:
    """Read what a client says of itself.

    Raises
    ------
    WireError
        A number or text is missing, strange, or no such thing.
    """
    try:
        return _read(client, node, parcel)
    except WireError as error:
        raise WireError(
            f"client {client} on node {node} sent a malformed answer to the roll call:"
            f" {error}; both ends must run the same version of fedgraph_flwr"
        ) from error


def difference(
    known: ClientInfo, now: ClientInfo, fields: tuple[Field, ...] = ()
) -> str:
    """Say how the data of a client that came back differ; "" if they do not.

    An identity that either side does not tell is not compared. ``fields`` are those of
    the method.
    """
    changed = [
        f"{words} was {shortened(before)}, is {shortened(found)}"
        for name, words in _LASTING.items()
        if (before := getattr(known, name)) != (found := getattr(now, name))
        and not (name == "identity" and "" in (before, found))
    ]
    declared = (*fields, *COMMON)
    names = {
        name
        for name in {*known.told, *now.told}
        if not (f := find(declared, Kind.TEXT, TOLD + name)) or f.is_lasting
    }
    if names := {k for k in names if known.told.get(k) != now.told.get(k)}:
        # Who differs from all others in these would stop them, too.
        told = [{k: i.told.get(k, "") for k in sorted(names)} for i in (known, now)]
        changed.append(
            f"what it tells was {shortened(told[0])}, is {shortened(told[1])}"
        )
    if not changed:
        return ""
    return (
        f"client {known.client} on node {now.node_id} came back with other data:"
        f" {', '.join(changed)}; restore the data, or start a new run"
    )


def _read(client: int, node: int, parcel: Parcel) -> ClientInfo:
    counts, facts = parcel.metrics, parcel.facts
    if (length := sum(len(k) + len(str(v)) for k, v in facts.items())) > _MOST_TEXT:
        raise WireError(
            f"its texts and their names have {length} characters, expected at most"
            f" {_MOST_TEXT}"
        )
    by_class, trained = (_by_class(counts, p) for p in (CLASS_COUNT, TRAIN_COUNT))
    strange = set(counts) - {*_COUNTS, *TIMING, "group", *by_class, *trained}
    strange |= {k for k in facts if k not in _TEXTS and not k.startswith(TOLD)}
    if strange or parcel.arrays or parcel.evaluation or len(facts) > 100:
        raise WireError(f"it sent {shortened(sorted(strange) or 'arrays')}")
    tasks = _listed(facts, "tasks", lambda t: isinstance(t, str) and len(t) <= _LONGEST)
    known = range(len(tasks))
    ids = _listed(facts, "task-ids", lambda t: type(t) is int and t in known)
    if list(ids) != sorted(set(ids)):
        raise WireError(f"its task ids are {shortened(ids)}, expected ascending ones")
    return ClientInfo(
        client=client,
        node_id=node,
        **{
            k.replace("-", "_"): _count(
                counts, k, least=int(k in _WIDTHS), most=_WIDTHS.get(k, _LARGEST)
            )
            for k in _COUNTS
        },
        group=_count(counts, "group", least=-1),
        split_hash=_hash(facts, SPLIT_HASH),
        raw_sha256=_hash(facts, RAW_HASH),
        identity=_text(facts, IDENTITY) if IDENTITY in facts else "",
        site=_site(facts),
        tasks=tuple(map(visible, tasks)),
        task_ids=ids,
        class_counts=tuple(_count(counts, k) for k in by_class),
        train_counts=tuple(_count(counts, k) for k in trained),
        told={k: _text(facts, TOLD + k) for k in select(TOLD, facts)},
    )


def _count(
    counts: Mapping[str, int | float],
    name: str,
    *,
    least: int = 0,
    most: int = _LARGEST,
) -> int:
    value = counts.get(name)
    if type(value) is not int or not least <= value <= most:
        upper = f" and <= {most}" if most < _LARGEST else ""
        raise WireError(
            f"{name} is {shortened(value)}, expected an integer >= {least}{upper}"
        )
    return value


def _by_class(counts: Mapping[str, int | float], prefix: str) -> list[str]:
    """Names of the facts with counts by class; empty if none were sent."""
    found = [k for k in counts if k.startswith(prefix)]
    expected = [f"{prefix}{k}" for k in range(len(found))]
    if sorted(found) != sorted(expected):
        raise WireError(
            f"class counts are {shortened(found)}, expected {shortened(expected)}"
        )
    if found and len(found) != counts.get("num-classes"):
        raise WireError(f"it counts {len(found)} classes, but has another num-classes")
    return expected


def _text(facts: Mapping[str, Scalar], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise WireError(f"{name} is {shortened(value)}, expected a short text")
    return visible(value)


def _site(facts: Mapping[str, Scalar]) -> str:
    """Name that a site gives itself; "" if it tells none."""
    if SITE not in facts:
        return ""
    name = _text(facts, SITE)
    if not is_site_name(name):
        raise WireError(
            f"{SITE} is {shortened(repr(name))}, expected {SITE_NAME_WORDS}"
        )
    return name


def _hash(facts: Mapping[str, Scalar], name: str) -> str:
    value = _text(facts, name)
    if not _HASH.fullmatch(value):
        raise WireError(f"{name} is {shortened(value)}, expected a SHA-256 or nothing")
    return value


def _listed(
    facts: Mapping[str, Scalar], name: str, allows: Callable[[Any], bool]
) -> tuple[Any, ...]:
    try:
        found = json.loads(str(facts.get(name, "[]")))
    except (ValueError, RecursionError) as error:
        raise WireError(f"{name} is not a list: {shortened(str(error))}") from error
    if not isinstance(found, list) or len(found) > _MOST:
        raise WireError(f"{name} is {shortened(found)}, expected a list")
    if bad := [item for item in found if not allows(item)]:
        raise WireError(f"{name} holds {shortened(bad)}")
    return tuple(found)
