"""Encodes parcels of named arrays as Flower messages, and decodes them.

A message carries one parcel per client that its node hosts. Flower sends each record
by itself, and an array of an ArrayRecord as two more objects (docs/decisions/0003), so
the arrays of a parcel travel as one value: the bytes of their safetensors encoding,
which keeps names, shapes and dtypes and, unlike pickle, cannot run code. Many bytes
travel as an array, which Flower cuts into parts that arrive one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import WireError
from .files import encode
from .words import shortened

if TYPE_CHECKING:  # here and below: what predicts has no Flower
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

NamedArrays: TypeAlias = dict[str, NDArray[np.generic]]
Scalar = int | float | str | bool
_Named = TypeVar("_Named")
_Record: TypeAlias = "ArrayRecord | ConfigRecord | MetricRecord"

# In the header of a message to clients.
SERVER_ROUND = "server-round"  # 0: the opening
EXPERIMENT = "experiment"  # name of the results folder
KEEP_FROM = "keep-from"  # the first round whose states clients keep
# Metrics of a reply.
NUM_EXAMPLES = "num-examples"  # trained on, or scored
COMPUTE_S = "compute-s"
STARTED_AT = "started-at"  # Unix time in seconds, on the clock of the site
TIMING = COMPUTE_S, STARTED_AT  # of every reply, a failure's too
EVAL, COUNT = "eval/", "count/"  # as in `evaluation_key` and `count_key`
TRAIN_LOSS = f"{EVAL}train/post_training/loss"  # mean of the last epoch of a round
# Facts of a reply: hashes, which confirm a guess of what is hashed.
SPLIT_HASH, IDENTITY, RAW_HASH = "split-hash", "identity", "raw-sha256"
WEIGHTS_HASH = "weights-sha256"
# In one or the other.
CLASS_COUNT = "class-count/"  # and a class: its graphs, told at roll call
TRAIN_COUNT = "train-count/"  # and a class: of them, those that train
CLASS_WEIGHTS = "class-weights"  # of all clients' training labels, as JSON
RAREST = "rarest-class"  # of all clients' training labels, as the server found out
BY_PRECISION = "by-precision"  # whether rounds are chosen by average precision
TOLD = "told/"  # and a name: a fact that a client's method adds at roll call
WHOLE = "whole"  # such a name: hash of labels and sizes of a set that is shared out
UNUSED = "unused"  # such a name: what the client's files hold and nobody reads
LEFT_OUT = "left-out"  # and such: shares of its tables that are left out
LAST_ROUND = "last-round"  # of this client that the server knows of; 0: none
SAME_DATA = "data"  # identity of the client's data, as it told at roll call
DATA_OF_ALL = "data-of-all"  # hash of all clients' identities
SPENT = "spent/"  # and a name: privacy that the client has told it had spent
FRESH_START = (
    "fresh-start"  # the client lost its state, after this round, and began anew
)
SITE = "site-name"  # what a site's operator calls it, told at roll call
OPENING = "opening"  # kind of query: clients give what others need before round 1
AUDIT_HEAD = "audit-head"  # in a site's header: hash of its log's last line
NO_CLIENTS = "no-clients"  # in the header of a node that hosts none: why
Records: TypeAlias = dict[str, Any]  # of one client, by kind
_HEADER = "header"
_PACKED = "safetensors"
_MOST_ARRAYS = 2**14  # of a parcel: a letter to each of 10,000 clients and more
_WHOLE = 4 * 2**20  # bytes of arrays that travel as one object, and no more
_TYPES = {
    "arrays": ("ConfigRecord", "ArrayRecord"),
    "evaluation": ("ConfigRecord", "ArrayRecord"),
    "metrics": ("MetricRecord",),
    "facts": ("ConfigRecord",),
    "error": ("ConfigRecord",),
}
_KINDS = tuple(_TYPES)
# One spelling for each client, and none so long that it is costly to read.
_NAME = re.compile(rf"(?P<client>0|[1-9][0-9]{{0,8}})/(?P<kind>{'|'.join(_KINDS)})")
MAX_REASON = 4000  # characters of an error that somebody else wrote


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


def evaluation_key(split: str, point: str, metric: str) -> str:
    """Metric name under which a client reports an evaluation."""
    return f"{EVAL}{split}/{point}/{metric}"


def count_key(split: str) -> str:
    """Metric name under which a client reports the size of a split."""
    return f"{COUNT}{split}"


def pack(
    parcels: Mapping[int, Parcel], header: Mapping[str, Scalar] | None = None
) -> RecordDict:
    """Build the content of a message from parcels, in client order.

    Parcels that hold the same ``arrays`` object share one record, which is encoded,
    and carried to a node, once. Of a parcel no empty record travels, unless it is all.
    """
    from flwr import app

    encoded: dict[int, ConfigRecord | ArrayRecord] = {}
    content = app.RecordDict({_HEADER: app.ConfigRecord(dict(header or {}))})
    for client_id in sorted(parcels):
        parcel = parcels[client_id]
        if parcel.error:
            content[f"{client_id}/error"] = app.ConfigRecord({"reason": parcel.error})
            content[f"{client_id}/metrics"] = app.MetricRecord(dict(parcel.metrics))
            continue
        if parcel.arrays:
            key = id(parcel.arrays)
            if key not in encoded:
                encoded[key] = _encode(parcel.arrays)
            content[f"{client_id}/arrays"] = encoded[key]
        if parcel.evaluation:
            content[f"{client_id}/evaluation"] = _encode(parcel.evaluation)
        if parcel.facts:
            content[f"{client_id}/facts"] = app.ConfigRecord(dict(parcel.facts))
        if parcel.metrics or not (parcel.arrays or parcel.evaluation or parcel.facts):
            content[f"{client_id}/metrics"] = app.MetricRecord(dict(parcel.metrics))
    return content


def unpack(content: RecordDict) -> tuple[dict[int, Parcel], dict[str, Scalar]]:
    """Read parcels and header back.

    Raises
    ------
    WireError
        As :func:`records_by_client` and :func:`read_parcel`.
    """
    decoded: dict[int, NamedArrays] = {}
    parcels = {
        client: read_parcel(client, records, decoded)
        for client, records in records_by_client(content).items()
    }
    return parcels, read_header(content)


def read_header(content: RecordDict) -> dict[str, Scalar]:
    """Read what a message says beside its parcels.

    Raises
    ------
    WireError
        There is no header.
    """
    from flwr import app

    header = content.get(_HEADER)
    if not isinstance(header, app.ConfigRecord):
        raise WireError(
            f"message has no {_HEADER!r} record, got {shortened(sorted(content))}; both"
            " ends must run the same version of fedgraph_flwr"
        )
    return _scalars(header)


def records_by_client(content: RecordDict) -> dict[int, Records]:
    """Group the records of a message by client, ascending, and kind; unread.

    Raises
    ------
    WireError
        There is no header, or a record has no name of ours.
    """
    read_header(content)
    grouped: dict[int, Records] = {}
    for name, record in content.items():
        if name == _HEADER:
            continue
        if not (match := _NAME.fullmatch(name)):
            raise WireError(
                f"message has a record {shortened(name)}; expected <client>/ and one of"
                f" {', '.join(_KINDS)}; both ends must run the same version of"
                " fedgraph_flwr"
            )
        grouped.setdefault(int(match["client"]), {})[match["kind"]] = record
    return dict(sorted(grouped.items()))


def read_parcel(
    client: int, records: Records, decoded: dict[int, NamedArrays] | None = None
) -> Parcel:
    """Read the records of one client.

    ``decoded`` remembers the arrays of records that several clients share.

    Raises
    ------
    WireError
        A record is of another type than its name says, or not decodable.
    """
    for kind, record in records.items():
        if type(record).__name__ not in _TYPES[kind]:  # Flower makes no others
            raise WireError(
                f"record {kind!r} of client {client} is a {type(record).__name__},"
                f" expected a {' or '.join(_TYPES[kind])}"
            )
    metrics = read_numbers(records)
    if strange := sorted(set(records.get("metrics", ())) - set(metrics)):
        raise WireError(
            f"metrics {shortened(strange)} of client {client} are not single numbers"
        )
    if "error" in records:
        return Parcel(error=_reason(client, records), metrics=metrics)
    facts = records.get("facts", {})
    if strange := [k for k, v in facts.items() if not isinstance(v, Scalar)]:
        raise WireError(
            f"facts {shortened(strange)} of client {client} are neither text, number"
            " nor flag"
        )
    arrays, evaluation = records.get("arrays"), records.get("evaluation")
    decoded = {} if decoded is None else decoded
    if arrays is not None and id(arrays) not in decoded:
        decoded[id(arrays)] = _decode(client, arrays)
    return Parcel(
        arrays=decoded[id(arrays)] if arrays is not None else {},
        evaluation={} if evaluation is None else _decode(client, evaluation),
        metrics=metrics,
        facts=_scalars(facts),
    )


def read_numbers(records: Records) -> dict[str, int | float]:
    """Read those metrics of a client that are single numbers."""
    from flwr import app

    record = records.get("metrics")
    if not isinstance(record, app.MetricRecord):
        return {}
    return {
        k: v
        for k, v in record.items()
        if isinstance(v, int | float) and not isinstance(v, bool)
    }


def _reason(client: int, records: Records) -> str:
    reason = records["error"].get("reason")
    if set(records) - {"error", "metrics"}:
        raise WireError(
            f"client {client} reports an error, and beside it {sorted(records)};"
            " expected metrics alone"
        )
    if not isinstance(reason, str) or not reason:
        raise WireError(f"client {client} reports an error, but no reason")
    return shortened(reason, MAX_REASON)


def record_sizes(content: RecordDict) -> Iterator[tuple[int, str, int]]:
    """Yield (client, record name, bytes) of each record of a message.

    Bytes are those of the serialised record: what Flower's transport sends. A record
    that several clients of a node share counts for each of them, as if each had a node
    of its own. The header counts for client -1. Records without a name of ours do not
    count.
    """
    sizes: dict[int, int] = {}  # of records that several clients share, once
    for name, record in content.items():
        match = _NAME.fullmatch(name)
        if match or name == _HEADER:
            if id(record) not in sizes:
                sizes[id(record)] = _serialized_bytes(record)
            client, kind = (match["client"], match["kind"]) if match else (-1, name)
            yield int(client), kind, sizes[id(record)]


def _serialized_bytes(record: _Record) -> int:
    try:
        parts = _parts(record).values() if record.children else [record]
        return sum(len(part.deflate()) for part in parts)
    except ValueError:  # an integer too large to travel; only in one process
        return 0


def _parts(of: Any) -> dict[str, Any]:
    """Return what Flower sends of an object: it and its parts, equal ones once."""
    found = {of.object_id: of}
    for part in (of.children or {}).values():
        found |= _parts(part)
    return found


def _scalars(record: Mapping[str, Any]) -> dict[str, Scalar]:
    return {k: v for k, v in record.items() if isinstance(v, Scalar)}


def _encode(arrays: NamedArrays) -> ConfigRecord | ArrayRecord:
    from flwr import app

    blob = encode(arrays)
    if len(blob) <= _WHOLE:
        return app.ConfigRecord({_PACKED: blob})
    return app.ArrayRecord({_PACKED: app.Array(np.frombuffer(blob, np.uint8))})


def _decode(client: int, record: ConfigRecord | ArrayRecord) -> NamedArrays:
    from flwr import app

    try:
        ((name, value),) = record.items()
        if name == _PACKED and isinstance(value, bytes):
            return read_arrays(value)
        if not isinstance(value, app.Array):
            raise ValueError(f"got {type(value).__name__} {shortened(name)}")
        packed = value.numpy()
        if name != _PACKED or packed.dtype != np.uint8 or packed.ndim != 1:
            raise ValueError(f"got {packed.dtype} {packed.shape} {shortened(name)}")
        return read_arrays(packed.tobytes())
    except Exception as error:  # whatever strange bytes make the readers raise
        raise WireError(
            f"arrays of client {client} cannot be decoded:"
            f" {shortened(str(error))}; expected bytes or one uint8 array {_PACKED!r}"
        ) from error


def read_arrays(blob: bytes) -> NamedArrays:
    """Read what :func:`~fedgraph_flwr.core.files.encode` wrote, if that is no flood.

    Raises
    ------
    ValueError
        There are more arrays than any parcel or letter has.
    Exception
        Whatever strange bytes make the reader of the format raise.
    """
    # Each array has a pair of braces in the header, which has one itself. Decoding a
    # hundred thousand empty arrays takes seconds, counting them none.
    num_arrays = blob.count(b"{", 8, 8 + int.from_bytes(blob[:8], "little")) - 1
    if num_arrays > _MOST_ARRAYS:
        raise ValueError(f"got {num_arrays} arrays, more than {_MOST_ARRAYS}")
    from safetensors.numpy import load

    return dict(sorted(load(blob).items()))  # it gives them in any order


def flatten(arrays: NamedArrays) -> NDArray[np.float64]:
    """Concatenate all tensors, by name, into one float64 vector."""
    numbers = [arrays[n].ravel().astype(np.float64) for n in sorted(arrays)]
    return np.concatenate([*numbers, np.zeros(0)])


def join(*parts: Parcel) -> Parcel:
    """Merge parcels into one; if parts share a name, the last part counts."""
    return Parcel(
        arrays={k: v for p in parts for k, v in p.arrays.items()},
        evaluation={k: v for p in parts for k, v in p.evaluation.items()},
        metrics={k: v for p in parts for k, v in p.metrics.items()},
        facts={k: v for p in parts for k, v in p.facts.items()},
    )


def with_prefix(prefix: str, named: Mapping[str, _Named]) -> dict[str, _Named]:
    """Add ``prefix`` to every name."""
    return {prefix + name: value for name, value in named.items()}


def select(prefix: str, named: Mapping[str, _Named]) -> dict[str, _Named]:
    """Pick the entries whose name starts with ``prefix``, and take the prefix off."""
    return {n[len(prefix) :]: v for n, v in named.items() if n.startswith(prefix)}


EARLIER_RUNS = "earlier-runs"  # in the header of messages of a resumed run
_TEXT = re.compile(r"(\d{1,20}:\d{0,6}( \d{1,20}:\d{0,6})*)?")


@dataclass(frozen=True)
class Lives:
    """Flower's runs of one experiment, each with the rounds of it that count.

    Parameters
    ----------
    run : int
        Number of the run that goes on now; 0 outside of Flower.
    earlier : tuple of (int, int)
        Runs that were resumed, each with its last round that counts, which is the
        checkpoint that the next one began from; ascending.
    spared : tuple of int
        Runs whose other states are not deleted yet: the server still has a later
        checkpoint of theirs.
    """

    run: int = 0
    earlier: tuple[tuple[int, int], ...] = ()
    spared: tuple[int, ...] = ()

    def run_of(self, server_round: int) -> int:
        """Run whose state after a round counts."""
        for run, last in self.earlier:
            if server_round <= last:
                return run
        return self.run

    def to_text(self) -> str:
        """Write the other runs as ``RUN:ROUND RUN:ROUND``, those spared as ``RUN:``."""
        words = [f"{run}:{last}" for run, last in self.earlier]
        return " ".join([*words, *(f"{run}:" for run in self.spared)])

    @classmethod
    def from_text(cls, run: int, text: object) -> Lives:
        """Read what :meth:`to_text` wrote.

        Raises
        ------
        WireError
            It is no such text, or rounds do not ascend.
        """
        if isinstance(text, str) and _TEXT.fullmatch(text):
            pairs = [pair.split(":") for pair in text.split()]
            earlier = tuple((int(of), int(last)) for of, last in pairs if last)
            spared = tuple(int(of) for of, last in pairs if not last)
            rounds = [last for _, last in earlier]
            if rounds == sorted(set(rounds)):
                return cls(run, earlier, spared)
        raise WireError(
            f"{EARLIER_RUNS} must be runs of Flower and their last rounds, ascending,"
            f" or none, as in '12:4 34:8 56:', got {shortened(text)} from the server;"
            " both ends must run the same version of fedgraph_flwr"
        )
