"""Checks clients' replies; a reply that is unfit is that client's failure, by name.

A node that speaks for clients that were not asked of it, or whose message cannot be
read, fails for all that were; anything else that is wrong fails one client alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from flwr.app import RecordDict

from fedgraph_flwr.common_fields import COMMON
from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.fields import LARGEST, Field, Kind, Phase, find
from fedgraph_flwr.core.privacy_settings import (
    EDGE,
    EDGE_SHARED,
    EDGE_TRAIN,
    GRAPH_EPSILON,
    IN_SUMS,
    OF_SITE,
    OVER_RUNS,
    SECRET,
    PrivacySettings,
)
from fedgraph_flwr.core.privacy_settings import METRIC as PRIVACY
from fedgraph_flwr.core.tasks import ON_ALL, ONE_CLASS
from fedgraph_flwr.core.wire import (
    EVAL,
    NUM_EXAMPLES,
    TIMING,
    NamedArrays,
    Parcel,
    Records,
    count_key,
    read_numbers,
    read_parcel,
    records_by_client,
    select,
)
from fedgraph_flwr.core.words import shortened
from fedgraph_flwr.methods.fedavg import DELTA, SHARED

from .averaging import FloatArray, find_bad_array, out_of_proportion, unflatten
from .round_report import ClientInfo

# By name, dtype and shape, where None stands for any length.
Layout: TypeAlias = Mapping[str, tuple[str, tuple[int | None, ...]]]
_COMPARED = (SHARED, DELTA)
_DIFFER = (
    "server and site run different settings or versions, or uplink() of a plug-in's"
    " strategy expects other arrays than that of its client sends"
)
_ARRAY = (np.ndarray, np.generic)
_HAIR = 1e-9  # what rounding may add to a share
_DRAWS, _UPDATE, _DELTA = "edge-draws", "update-epsilon", "update-delta"
_TOTALS = (  # of privacy; what is told, is told of all of a row
    (_DRAWS, EDGE, EDGE + OF_SITE, EDGE + OVER_RUNS),
    (
        EDGE_TRAIN,
        EDGE_TRAIN + OF_SITE,
        EDGE_TRAIN + OVER_RUNS,
        EDGE_SHARED,
        EDGE_SHARED + OVER_RUNS,
    ),
    (_UPDATE, _DELTA),
    (GRAPH_EPSILON, GRAPH_EPSILON + OVER_RUNS, "graph-delta"),
    (IN_SUMS,),
)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Requirements on the reply of one client.

    ``due`` are the points at which it evaluates its model; ``on_all`` says whether it
    also scores its model on the test sets of all clients; of ``neighbours`` it may say
    that their mail is missing or of no use; ``fields`` are those of the method.
    """

    info: ClientInfo
    phase: Phase
    layout: Layout
    due: Collection[str]
    on_all: bool
    neighbours: Collection[int]
    fields: tuple[Field, ...] = ()


def read_reply(content: RecordDict, asked: Collection[int]) -> dict[int, Parcel]:
    """Read the parcels of all clients that a message asked of a node.

    What cannot be read is a parcel with an error, and with the metrics if these can.
    """
    try:
        records = records_by_client(content)
    except WireError as error:
        return _refused(asked, f"the reply of its node is malformed: {error}")
    if strangers := sorted(set(records) - set(asked)):
        words = (
            f"its node spoke for clients {shortened(strangers)} too, which were not"
            " asked of it: nothing of its reply counts; look at that node's clients"
        )
        return _refused(asked, words)
    decoded: dict[int, NamedArrays] = {}
    return {c: _read(c, records.get(c, {}), decoded) for c in sorted(asked)}


def _refused(asked: Collection[int], reason: str) -> dict[int, Parcel]:
    return {c: Parcel(error=reason) for c in sorted(asked)}


def _read(client: int, records: Records, decoded: dict[int, NamedArrays]) -> Parcel:
    if not records:
        return Parcel(error="the reply of its node holds no parcel of it")
    try:
        return read_parcel(client, records, decoded)
    except WireError as error:  # what it has spent of its privacy counts all the same
        return Parcel(error=str(error), metrics=read_numbers(records))


def misfit(parcel: Parcel, expected: Expected) -> str:
    """Say what is wrong with a parcel that could be read; "" if nothing is."""
    return (
        find_misfit(parcel.arrays, expected.layout)
        or _wrong_metrics(parcel.metrics, expected)
        or _wrong_facts(parcel, expected.phase)
        or _too_large(parcel.arrays, expected.fields)
        or find_bad_array(parcel.evaluation)
    )


def layout_of(arrays: NamedArrays) -> Layout:
    """Names, dtypes and shapes of arrays."""
    return {n: (_name(a.dtype), tuple(a.shape)) for n, a in arrays.items()}


@cache
def _name(kind: np.dtype[Any]) -> str:
    """Return ``kind.name``, which NumPy puts together anew each time it is asked."""
    return kind.name


def find_misfit(arrays: NamedArrays, layout: Layout) -> str:
    """Say how arrays differ from what was to be sent; "" if they do not."""
    if arrays.keys() != layout.keys():
        missing = sorted(layout.keys() - arrays.keys())
        strange = sorted(arrays.keys() - layout.keys())
        parts = [
            f"{words} {shortened(names)}"
            for words, names in (("lacks", missing), ("holds", strange))
            if names
        ]
        return (
            f"what it sent {' and '.join(parts)}, expected {len(layout)} arrays;"
            f" {_DIFFER}"
        )
    for name, (dtype, shape) in layout.items():
        found = arrays[name]
        fits = len(found.shape) == len(shape) and all(
            length in (None, n) for n, length in zip(found.shape, shape, strict=True)
        )
        if _name(found.dtype) != dtype or not fits:
            return (
                f"array {name!r} is {found.dtype} of shape {found.shape}, expected"
                f" {dtype} of shape {tuple('any' if n is None else n for n in shape)};"
                f" {_DIFFER}"
            )
    return find_bad_array(arrays)


def is_model(given: object) -> bool:
    """Whether something that a paper gives is NumPy arrays by name."""
    return isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(array, _ARRAY)
        for name, array in given.items()
    )


def _too_large(arrays: NamedArrays, fields: tuple[Field, ...]) -> str:
    for name, array in arrays.items():
        most = getattr(find(fields, Kind.ARRAY, name), "most", LARGEST)
        if most < LARGEST and (np.abs(array) > most).any():
            return f"array {name!r} holds numbers beyond +-{most:g}; scale its features"
    return ""


def find_absurd(
    parcels: Mapping[int, Parcel], sent: NamedArrays, guard: float
) -> dict[int, str]:
    """Name clients whose models or updates hold numbers out of all proportion.

    See :func:`~strategies.averaging.out_of_proportion`; ``sent`` is what one of them
    got, ``guard`` is ``robust.guard``, which 0 switches off.
    """
    if not guard:
        return {}
    models = {c: _compared(p.arrays) for c, p in parcels.items()}
    return out_of_proportion(models, _compared(sent), guard)


def _compared(arrays: NamedArrays) -> NamedArrays:
    """Arrays of models and of updates; what models make of data may be far larger."""
    return {
        n.partition("/")[2]: a for n, a in arrays.items() if n.startswith(_COMPARED)
    }


def update_of(arrays: NamedArrays, sent: NamedArrays) -> NamedArrays:
    """Subtract what was sent from the floating tensors of a client's model."""
    return {
        n: np.subtract(a, sent.get(n, 0.0), dtype=np.float64)
        for n, a in arrays.items()
        if n.startswith(_COMPARED) and a.dtype.kind == "f"
    }


def apply(update: FloatArray, arrays: NamedArrays, sent: NamedArrays) -> NamedArrays:
    """Return the arrays of a client that had changed its model by this vector."""
    changed = unflatten(update, update_of(arrays, sent))
    new = {
        n: np.add(u, sent.get(n, 0.0)).astype(arrays[n].dtype)
        for n, u in changed.items()
    }
    return {**arrays, **new}


def check_privacy(
    client: int,
    metrics: Mapping[str, int | float],
    before: Mapping[str, float],
    *,
    of_run: PrivacySettings | None,
    is_failure: bool = False,
) -> tuple[dict[str, float], str]:
    """Add up what a client has spent of its privacy, and say what is wrong with it.

    A total never falls: the largest counts. A client that failed may tell nothing. A
    total of what the run does not protect counts for nothing.
    """
    spent = select(PRIVACY, metrics)
    edges, of_train, updates, graphs, in_sums = map(set, _TOTALS)
    asked = edges | of_train if of_run and of_run.edge_epsilon > 0 else set()
    asked |= updates if of_run and of_run.update_clip > 0 else set()
    asked |= in_sums if of_run and of_run.update_noise_shared else set()
    asked |= graphs if of_run and of_run.graph_clip > 0 else set()
    if unasked := sorted(set(spent) - asked - {SECRET}):
        return dict(before), (
            f"client {client} reports {shortened(unasked)} as privacy that it spent,"
            " which the run does not protect (edge-epsilon, update-clip and graph-clip"
            " of its privacy keys); server and site run different settings or versions"
        )
    words = f"the privacy that client {client} reports as spent is malformed"
    if strange := _wrong_totals(spent):
        return dict(before), f"{words}: {strange}"
    now = {k: float(v) for k, v in spent.items()}
    kept = {**before, **{k: max(v, before.get(k, 0.0)) for k, v in now.items()}}
    if SECRET in kept:  # noise that was drawn without a secret stays so
        kept[SECRET] = min(now.get(SECRET, 1.0), before.get(SECRET, 1.0))
    if is_failure and not spent:
        return kept, ""
    for name in sorted(set(before) - {SECRET}):
        if name.endswith(OF_SITE):
            continue  # of whichever clients the site hosts now
        if now.get(name, -1.0) < before[name] * (1 - _HAIR):
            found = f"{now[name]:g}" if name in now else "missing"
            return kept, (
                f"the ledger of client {client} says less than before: {name} was"
                f" {before[name]:g}, is {found}; restore its state-dir"
            )
    return kept, ""


def _wrong_totals(totals: Mapping[str, int | float]) -> str:
    names = set(totals) - {SECRET}
    rows = [set(row) for row in _TOTALS]
    whole = [row for row in rows if row & names]
    if names != set().union(*whole) or (rows[1] <= names and not rows[0] <= names):
        return f"got {shortened(sorted(names))}, expected all of a kind"
    if (SECRET in totals) != bool(names) or totals.get(SECRET, 0) not in (0, 1):
        return f"{SECRET!r} must be 0 or 1 beside totals, and only there"
    for name, value in totals.items():
        if not 0 <= value <= (1 if name == _DELTA else LARGEST):
            return f"{name} is {shortened(value)}"
    return ""


def _wrong_metrics(metrics: Mapping[str, int | float], expected: Expected) -> str:
    info = expected.info
    exact = {
        count_key("train"): info.num_train,
        count_key("val"): info.num_val,
        count_key("test"): info.num_test,
        count_key("all"): info.num_graphs,
    }
    needed = [*TIMING]
    if expected.phase not in (Phase.OPENING, Phase.HAND_IN):
        is_training = expected.phase is Phase.TRAINING
        exact[NUM_EXAMPLES] = info.num_train if is_training else info.num_test
        needed.append(NUM_EXAMPLES)
    if missing := [name for name in needed if name not in metrics]:
        return f"metrics {missing} are missing"
    for name, value in metrics.items():
        if name.startswith(PRIVACY):
            continue  # see check_privacy
        if name in exact:
            if type(value) is not int or value != exact[name]:
                return (
                    f"metric {name!r} is {shortened(value)}, at roll call it was"
                    f" {exact[name]}"
                )
        elif problem := _wrong_metric(name, value, expected):
            return problem
        if name.startswith(EVAL):
            count = count_key(name.removeprefix(EVAL).partition("/")[0])
            if count not in metrics:
                return f"metric {name!r} comes without {count!r}"
    return ""


def _wrong_metric(name: str, value: float, expected: Expected) -> str:
    field = find((*COMMON, *expected.fields), Kind.NUMBER, name)
    if field is None or not _is_due(field, name, expected):
        return (
            f"metric {shortened(name)!r} is none that clients send here; let a plug-in"
            " send numbers of its own as an array"
        )
    if name.endswith(f"/{ONE_CLASS}"):
        field = replace(field, most=expected.info.num_classes - 1.0)
    if words := field.wrong(value):
        return f"metric {name!r} is {shortened(value)}, expected {words}"
    return ""


def _is_due(field: Field, name: str, expected: Expected) -> bool:
    """Whether a client may send this number in this exchange."""
    if expected.phase not in field.phases:
        return False
    if field.of_neighbour:
        return int(name.removeprefix(field.name)) in expected.neighbours
    if field.name != EVAL:
        return True
    parts = field.parts(name)
    if parts["metric"].endswith(ON_ALL):
        return expected.on_all
    is_training = expected.phase is Phase.TRAINING
    is_loss = is_training and parts["split"] == "train"
    is_of_task = int(parts.get("task") or -1) < len(expected.info.tasks)
    return is_of_task and (is_loss or parts["point"] in expected.due)


def _wrong_facts(parcel: Parcel, phase: Phase) -> str:
    texts = {f.name: f for f in COMMON if f.kind is Kind.TEXT and phase in f.phases}
    if parcel.facts.keys() != texts.keys():
        return (
            f"facts are {shortened(sorted(parcel.facts))}, expected {sorted(texts)};"
            " server and site run different versions"
        )
    for name, value in parcel.facts.items():
        if words := texts[name].wrong(value):
            return f"fact {name!r} is {shortened(value)}, expected {words}"
    return ""
