"""Letters that clients of a decentralised method write to their neighbours.

One string of bytes per sender and mixing round: an envelope, which a relay may read,
and contents, which it need not. Letter are safetensors: reading runs no code.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.files import encode
from fedgraph_flwr.core.mixing import Peer, check_entries
from fedgraph_flwr.core.wire import NamedArrays, read_arrays, select, with_prefix

if TYPE_CHECKING:
    from .sealing import Lock

_OPEN, _SEALED = b"FGP1", b"FGS1"
_ENVELOPE = struct.Struct(">4s32sIII")  # magic, SHA-256 of the run, round, from, to
ENVELOPE_BYTES = _ENVELOPE.size
EVERYONE = 2**32 - 1
_MODEL = "model/"
_FIELDS = ("head_rows", "task_ids", "omega", "omega_task_ids", "counts")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Who sends what to whom, when, in which run; all of it is authenticated.

    ``receiver`` is ``EVERYONE`` for a letter that is not sealed.
    """

    run: str
    server_round: int
    sender: int
    receiver: int

    def envelope(self, *, is_sealed: bool) -> bytes:
        """Encode the address, 48 bytes."""
        digest = hashlib.sha256(self.run.encode()).digest()
        magic = _SEALED if is_sealed else _OPEN
        return _ENVELOPE.pack(
            magic, digest, self.server_round, self.sender, self.receiver
        )


@dataclass(frozen=True, kw_only=True)
class Letter:
    """Contents of a letter: what a neighbour learns.

    Parameters
    ----------
    tensors : dict of str to array
        All tensors of the sender's model that are mixed.
    task_ids : int64 array, shape (num_own_tasks,)
        S_k, ascending.
    head_rows : float32 array, shape (num_own_tasks, hidden_dim)
        Phi_k[S_k].
    omega_task_ids : int64 array, shape (num_known_tasks,)
        T_k, ascending.
    omega : float32 array, shape (num_known_tasks, num_known_tasks)
        Omega_k.
    peer : Peer
        N_k and the number of neighbours.
    """

    tensors: NamedArrays
    task_ids: NDArray[np.int64]
    head_rows: NDArray[np.float32]
    omega_task_ids: NDArray[np.int64]
    omega: NDArray[np.float32]
    peer: Peer

    def encode(self) -> bytes:
        """Serialise as safetensors."""
        counts = np.array([self.peer.num_examples, self.peer.num_neighbours], np.int64)
        arrays = {
            **with_prefix(_MODEL, self.tensors),
            **{n: getattr(self, n) for n in _FIELDS if n != "counts"},
            "counts": counts,
        }
        return encode(arrays)

    @classmethod
    def decode(cls, sender: int, contents: bytes) -> Letter:
        """Read back what :meth:`encode` returned.

        Raises
        ------
        WireError
            Not a letter's contents, or parts that do not fit together.
        """
        from safetensors import SafetensorError

        try:
            arrays: dict[str, NDArray[Any]] = read_arrays(contents)
        # KeyError: a type of numbers that NumPy does not have
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WireError(
                f"letter of client {sender} cannot be decoded: {error!r}; both ends"
                " must run the same version of fedgraph_flwr"
            ) from error
        if missing := sorted(set(_FIELDS) - set(arrays)):
            raise WireError(
                f"letter of client {sender} lacks {', '.join(missing)}, expected"
                f" {', '.join(_FIELDS)}; both ends must run the same version of"
                " fedgraph_flwr"
            )
        found = {n: arrays[n] for n in _FIELDS}
        own, known = found["task_ids"].size, found["omega_task_ids"].size
        width = found["head_rows"].shape[-1] if found["head_rows"].ndim == 2 else 0
        layout = {n: (str(found[n].dtype), tuple(found[n].shape)) for n in _FIELDS}
        expected = {
            "head_rows": ("float32", (own, width)),
            "task_ids": ("int64", (own,)),
            "omega": ("float32", (known, known)),
            "omega_task_ids": ("int64", (known,)),
            "counts": ("int64", (2,)),
        }
        if layout != expected or found["counts"].min() < 0:
            raise WireError(
                f"letter of client {sender} holds parts that do not fit: {layout},"
                f" expected {expected} and counts >= 0; both ends must run the same"
                " version of fedgraph_flwr"
            )
        check_entries(f"letter of client {sender}", found)
        num_examples, num_neighbours = (int(n) for n in found.pop("counts"))
        return cls(
            tensors=select(_MODEL, arrays),
            peer=Peer(num_neighbours=num_neighbours, num_examples=num_examples),
            **found,
        )

    def check(self, sender: int, *, num_tasks: int, width: int) -> None:
        """Raise WireError unless tasks and rows are those of a head of this shape."""
        for name, ids in (("tasks", self.task_ids), ("Omega", self.omega_task_ids)):
            is_ordered = bool((np.diff(ids) > 0).all())
            if not is_ordered or (ids.size and not 0 <= ids[0] <= ids[-1] < num_tasks):
                raise WireError(
                    f"letter of client {sender} names {name} {ids[:9].tolist()}"
                    f"{' ...' * (ids.size > 9)}, expected ids below {num_tasks},"
                    " ascending; all clients must run the same settings"
                )
        if self.head_rows.shape[1] != width:
            raise WireError(
                f"letter of client {sender} has head rows of {self.head_rows.shape[1]}"
                f" numbers, expected {width}; all clients must run the same settings"
            )


def write(address: Address, contents: Letter, lock: Lock | None = None) -> bytes:
    """Make a letter, sealed by ``lock`` if given: only the receiver can open that."""
    envelope = address.envelope(is_sealed=lock is not None)
    plain = contents.encode()
    return envelope + (lock.seal(plain, envelope) if lock else plain)


def is_sealed(letter: bytes) -> bool:
    """Whether a letter says that it is sealed."""
    return letter[:4] == _SEALED


def describe(letters: Iterable[bytes]) -> str:
    """Say how many letters are sealed, and how many any relay can read."""
    states = Counter(map(is_sealed, letters))
    words = [
        f"{states[state]} {name} letter{'s' * (states[state] > 1)}"
        for state, name in ((True, "sealed"), (False, "open"))
        if states[state]
    ]
    return " and ".join(words) or "no letters"


def read(
    letter: bytes,
    *,
    run: str,
    sender: int,
    receiver: int,
    before_round: int,
    lock: Lock | None = None,
) -> tuple[int, bytes]:
    """Check a letter's address, open it, and return its round and encoded contents.

    Parameters
    ----------
    run : str
        Name of the run.
    sender, receiver : int
        From whom the relay says it is, and who reads it.
    before_round : int
        The letter must be of an earlier round than the present one.
    lock : Lock, optional
        Shared with the sender, where letters are sealed.

    Raises
    ------
    WireError
        Another run, sender, receiver or round than expected; sealed or not against
        expectation; altered, or sealed with another key.
    """
    what = f"letter of client {sender} for client {receiver}"
    if len(letter) < ENVELOPE_BYTES or letter[:4] not in (_OPEN, _SEALED):
        raise WireError(
            f"{what} has no envelope; both ends must run the same version of"
            " fedgraph_flwr"
        )
    envelope, body = letter[:ENVELOPE_BYTES], letter[ENVELOPE_BYTES:]
    magic, digest, server_round, writer, addressee = _ENVELOPE.unpack(envelope)
    if (magic == _SEALED) != (lock is not None):
        state = ("not sealed", "sealed")
        raise WireError(
            f"{what} is {state[magic == _SEALED]}, expected {state[lock is not None]};"
            " set the key seal alike everywhere"
        )
    if digest != hashlib.sha256(run.encode()).digest():
        raise WireError(
            f"{what} is of another run than {run!r}: the relay hands out old mail"
        )
    if writer != sender:
        raise WireError(
            f"{what} was written by client {writer}: the relay swapped senders"
        )
    if addressee != (receiver if lock else EVERYONE):
        raise WireError(
            f"{what} is addressed to client {addressee}: the relay delivered it to"
            " another"
        )
    if not 0 < server_round < before_round:
        raise WireError(
            f"{what} is of round {server_round}, expected one before {before_round}:"
            " the relay turns back rounds"
        )
    return server_round, lock.open(body, envelope, what) if lock else body
