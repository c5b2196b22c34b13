"""Messages <-> what clients and strategies speak: parcels of named arrays.

A message carries one parcel per client that its node hosts. Flower charges about
0.15 ms per array and direction (measured, docs/decisions/0003), so the arrays of a
parcel travel as one: their safetensors encoding, which keeps names, shapes and
dtypes and, unlike pickle, cannot run code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as decode_arrays
from safetensors.numpy import save as encode_arrays

from .errors import WireError

NamedArrays: TypeAlias = dict[str, NDArray[np.generic]]
Scalar = int | float | str | bool
_Named = TypeVar("_Named")

CLASS_COUNT = "class-count/"  # and a class: its graphs, told at roll call
TOLD = "told/"  # and a name: a fact that a client's method adds at roll call
LAST_ROUND = "last-round"  # of this client that the server knows of; absent: none
SAME_DATA = "data"  # identity of the client's data, as it told at roll call
SPENT = "spent/"  # and a name: privacy that the client has told it had spent
FRESH_START = (
    "fresh-start"  # the client lost its state, after this round, and began anew
)
OPENING = "opening"  # kind of query: clients give what others need before round 1
_HEADER = "header"
_PACKED = "safetensors"
_KINDS = ("arrays", "evaluation", "metrics", "facts", "error")
_sizes: dict[object, int] = {}  # serialised size of an ArrayRecord, by its layout


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """What travels between the server and one client, in either direction.

    Parameters
    ----------
    arrays : dict of str to array
        Named tensors, float32 unless stated by the method.
    metrics : dict of str to number
        Numbers reported by a client.
    facts : dict of str to scalar
        Texts and flags reported by a client, e.g. the hash of its split.
    evaluation : dict of str to array
        What the server needs to evaluate in a client's stead, and no strategy sees;
        a record of its own, so that its bytes are told apart.
    error : str
        Why the client failed; "" if it did not. With it travel metrics at most.
    """

    arrays: NamedArrays = field(default_factory=dict)
    evaluation: NamedArrays = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    error: str = ""


def pack(
    parcels: Mapping[int, Parcel], header: Mapping[str, Scalar] | None = None
) -> RecordDict:
    """Build the content of a message from parcels, in client order.

    Parcels that hold the same ``arrays`` object share one record, which is encoded,
    and carried to a node, once.
    """
    encoded: dict[int, ArrayRecord] = {}
    content = RecordDict({_HEADER: ConfigRecord(dict(header or {}))})
    for client_id in sorted(parcels):
        parcel = parcels[client_id]
        if parcel.error:
            content[f"{client_id}/error"] = ConfigRecord({"reason": parcel.error})
            content[f"{client_id}/metrics"] = MetricRecord(dict(parcel.metrics))
            continue
        if parcel.arrays:
            key = id(parcel.arrays)
            if key not in encoded:
                encoded[key] = _encode(parcel.arrays)
            content[f"{client_id}/arrays"] = encoded[key]
        if parcel.evaluation:
            content[f"{client_id}/evaluation"] = _encode(parcel.evaluation)
        if parcel.facts:
            content[f"{client_id}/facts"] = ConfigRecord(dict(parcel.facts))
        content[f"{client_id}/metrics"] = MetricRecord(dict(parcel.metrics))
    return content


def unpack(content: RecordDict) -> tuple[dict[int, Parcel], dict[str, Scalar]]:
    """Read parcels and header back.

    Raises
    ------
    WireError
        A record is missing, of an unknown name, or not decodable.
    """
    header = content.get(_HEADER)
    if not isinstance(header, ConfigRecord):
        raise WireError(
            f"message has no {_HEADER!r} record, got {sorted(content)}; both ends must"
            " run the same version of fedgraph_flwr"
        )
    parcels: dict[int, Parcel] = {}
    decoded: dict[int, NamedArrays] = {}
    for client_id, records in _by_client(content).items():
        metrics = records.get("metrics")
        if not isinstance(metrics, MetricRecord):
            raise WireError(f"parcel of client {client_id} has no metrics record")
        numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
        if isinstance(error := records.get("error"), ConfigRecord):
            parcels[client_id] = Parcel(error=str(error["reason"]), metrics=numbers)
            continue
        arrays, facts = records.get("arrays"), records.get("facts")
        evaluation = records.get("evaluation")
        if arrays is not None and id(arrays) not in decoded:
            decoded[id(arrays)] = _decode(client_id, arrays)
        parcels[client_id] = Parcel(
            arrays=decoded[id(arrays)] if arrays is not None else {},
            evaluation={} if evaluation is None else _decode(client_id, evaluation),
            metrics=numbers,
            facts=_scalars(facts) if isinstance(facts, ConfigRecord) else {},
        )
    return parcels, _scalars(header)


def record_sizes(content: RecordDict) -> Iterator[tuple[int, str, int]]:
    """Yield (client, record name, bytes) of each record of a message.

    Bytes are those of the serialised record and, for arrays, of its array objects:
    what Flower's transport sends. A record that several clients of a node share counts
    for each of them, as if each had a node of its own. The header counts for client -1.
    """
    for name, record in content.items():
        if name == _HEADER:
            yield -1, name, len(record.deflate())
            continue
        client, _, kind = name.partition("/")
        yield int(client), kind, _serialized_bytes(record)


def _serialized_bytes(record: ArrayRecord | ConfigRecord | MetricRecord) -> int:
    # An ArrayRecord serialises to a list of references; its arrays follow as objects
    # of their own, of which the raw data are all but a few dozen bytes.
    if not isinstance(record, ArrayRecord):
        return len(record.deflate())
    key = tuple((name, a.dtype, tuple(a.shape)) for name, a in record.items())
    if key not in _sizes:
        nested = get_all_nested_objects(record).values()
        _sizes[key] = sum(len(part.deflate()) for part in nested)
    return _sizes[key]


def _scalars(record: ConfigRecord) -> dict[str, Scalar]:
    return {k: v for k, v in record.items() if isinstance(v, Scalar)}


def _encode(arrays: NamedArrays) -> ArrayRecord:
    contiguous = {n: np.asarray(array, order="C") for n, array in arrays.items()}
    blob = encode_arrays(contiguous)
    return ArrayRecord({_PACKED: Array(np.frombuffer(blob, np.uint8))})


def _by_client(content: RecordDict) -> dict[int, dict[str, object]]:
    grouped: dict[int, dict[str, object]] = {}
    for name, record in content.items():
        if name == _HEADER:
            continue
        client, _, kind = name.partition("/")
        if not client.isdigit() or kind not in _KINDS:
            raise WireError(
                f"message has a record {name!r}; expected <client>/ and one of"
                f" {', '.join(_KINDS)}"
            )
        grouped.setdefault(int(client), {})[kind] = record
    return dict(sorted(grouped.items()))


def _decode(client_id: int, record: object) -> NamedArrays:
    try:
        assert isinstance(record, ArrayRecord)
        return dict(decode_arrays(record[_PACKED].numpy().tobytes()))
    except (AssertionError, KeyError, SafetensorError, ValueError) as error:
        raise WireError(
            f"arrays of client {client_id} cannot be decoded: {error}; expected one"
            f" uint8 array {_PACKED!r}"
        ) from error


def with_prefix(prefix: str, named: Mapping[str, _Named]) -> dict[str, _Named]:
    """Add ``prefix`` to every name."""
    return {prefix + name: value for name, value in named.items()}


def select(prefix: str, named: Mapping[str, _Named]) -> dict[str, _Named]:
    """Pick what has a name that starts with ``prefix``, without the prefix."""
    return {n[len(prefix) :]: v for n, v in named.items() if n.startswith(prefix)}
