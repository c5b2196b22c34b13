"""Sums of clients' updates of which the server sees no single one.

Clients cover what they send with pads that cancel in the sum over all of them. What
both sides must do alike stands here: the settings, the numbers of a vector, and the
label of a sum, by which pads are told apart.

The set of clients is fixed before anything is covered. So nobody tells a secret to
anybody, and a sum over fewer clients is noise: the pairwise half of Bonawitz et al.
2017 (CCS, doi:10.1145/3133956.3133982), without the half that lets clients drop out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import RunSettings, Settings
from .errors import ConfigError, WireError
from .fields import Field
from .rules import flag, integer, number
from .wire import NamedArrays, Scalar
from .words import shortened

MASK_KEY = "mask-key"  # told at roll call,
KNOWN_BY = "keys-known-by"  # and how the site knows the keys of others
NAMED = "fingerprints"
MASKED, LABEL = "masked", "mask-label"  # arrays of a reply
HANDED = "handed-in-for"  # array: ids of the sum of this round, if a client is in one
HAND_IN = "train.hand_in"  # kind of message
MEMBERS, KEYS, TOTAL = "members", "mask-keys", "total-weight"  # facts for a client
UPDATE_NORM = "update-norm"  # metric, where clusters are made by norms
_FRACTION_BITS = 40
_MOST = 2.0**22  # of a number of an update: then no sum of shares wraps
_MOST_MEMBERS = 256  # each pair of them has a pad
_VERSION = 1  # of what a label is made of
_IDS = re.compile(r"\d{1,9}( \d{1,9})*")
Vector = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Settings):
    """Off by default; docs/secure-aggregation.md says what it does not protect."""

    TABLE = "secure-aggregation"

    on: bool = flag(False)
    """The server sees sums of updates alone: each is covered by pads that cancel in the
    sum."""
    least: int = integer(3, 2, _MOST_MEMBERS)
    """Fewest clients in a sum. Of two, each learns the other's update."""
    hand_in_timeout_s: float = number(300.0, 0, low_open=True)
    """With `min-fit-replies` below 1: seconds in which all who trained must hand in."""


def check_sums(
    sums: SecureAggregation,
    settings: RunSettings,
    why_not: str,
    sends: Collection[Field],
) -> None:
    """Refuse a run in which single clients would show in spite of sums.

    Parameters
    ----------
    why_not : str
        Why the server of the method needs more than sums; "" if it does not.
    sends : collection of Field
        What clients send beside their models.
    """
    if not sums.on:
        return
    count = settings.num_clients - len(settings.never_train)
    beside = sorted({f.what for f in sends})
    problem = ""
    if why_not:
        problem = (
            f"the server of method {settings.method!r} needs more than sums: {why_not};"
            " take a method whose server averages, e.g. fedavg"
        )
    elif beside:
        problem = f"clients send {beside[0]}, which no pad covers; switch that off"
    elif settings.is_sampled:
        problem = (
            f"client-fraction is {settings.client_fraction:g}, and sums over sets that"
            " change by lot give single updates away; set client-fraction to 1"
        )
    elif may_drop_out(settings) and settings.checkpoint_every > 1:
        problem = (
            f"checkpoint-every is {settings.checkpoint_every}, and with min-fit-replies"
            " below 1 a resumed run must repeat each round with its set; set it to 1"
        )
    elif not sums.least <= count <= _MOST_MEMBERS:
        problem = (
            f"{count} clients train, and a sum is of {sums.least}"
            f" (secure-aggregation.least) to {_MOST_MEMBERS}; change num-clients"
        )
    if problem:
        raise ConfigError(
            f"secure-aggregation.on is true, but {problem}, or leave"
            " secure-aggregation.on out of the run config"
        )


def describe_sums(
    sums: SecureAggregation, known_by: Mapping[int, str]
) -> dict[str, Any]:
    """Make the summary's entry; nothing if the server saw each update.

    ``known_by``: by client, how its site knows the keys of the others.
    """
    if not sums.on:
        return {}
    compared = sorted(c for c, how in known_by.items() if how == NAMED)
    says = (
        f"secure-aggregation: the server saw one sum of {len(known_by)} updates a round"
        f" and none of them; sites compared fingerprints of keys for {len(compared)} of"
        f" {len(known_by)} clients, and believed keys when first seen for the others"
    )
    facts = {"members": sorted(known_by), "compared_by": compared}
    return {"secure_aggregation": {"says": says, **facts}}


def may_drop_out(settings: RunSettings) -> bool:
    """Whether clients train first and hand in when it is known who has trained."""
    return settings.min_fit_replies < 1


@dataclass(frozen=True)
class SumOf:
    """The clients of a sum, ascending, the keys of all clients, the members' weight."""

    members: tuple[int, ...]
    keys: Mapping[int, str]
    total: int

    def to_facts(self) -> dict[str, Scalar]:
        """Write it into a parcel to a client."""
        ids = " ".join(map(str, self.members))
        return {MEMBERS: ids, KEYS: self._keys(), TOTAL: self.total}

    def _keys(self) -> str:
        return json.dumps({str(c): self.keys[c] for c in sorted(self.keys)})

    @classmethod
    def from_facts(cls, facts: Mapping[str, Scalar]) -> SumOf:
        """Read what :meth:`to_facts` wrote.

        Raises
        ------
        WireError
            It is not there, or malformed.
        """
        ids, total = facts.get(MEMBERS), facts.get(TOTAL)
        try:
            given = dict(json.loads(str(facts.get(KEYS))))
            keys = {int(c): key for c, key in given.items() if isinstance(key, str)}
        except (ValueError, TypeError, RecursionError):
            keys = {}
        if isinstance(ids, str) and _IDS.fullmatch(ids) and type(total) is int:
            members = tuple(map(int, ids.split()))
            if list(members) == sorted(keys.keys() & {*members}):
                return cls(members, keys, total)
        raise WireError(
            f"the server's message does not say whose sum it asks for: {MEMBERS} is"
            f" {shortened(ids)}, {TOTAL} {shortened(total)}; both ends must run the"
            " same version of fedgraph_flwr"
        )

    def label(
        self,
        *,
        experiment: str,
        run: int,
        server_round: int,
        config_sha256: str,
        received: str,
    ) -> bytes:
        """SHA-256 of all that members must agree on.

        Pads of another label are independent: whoever was told something else makes
        noise of the sum, and shows nothing.

        Parameters
        ----------
        run : int
            Flower's.
        config_sha256 : str
            Of the run config.
        received : str
            :func:`digest` of the arrays that members trained from.
        """
        about = {
            "version": _VERSION,
            "experiment": experiment,
            "run": run,
            "round": server_round,
            "members": list(self.members),
            "keys": self._keys(),
            "config": config_sha256,
            "received": received,
            "total": self.total,
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).digest()


def digest(arrays: NamedArrays) -> str:
    """SHA-256 of arrays: their names, types, shapes and numbers, by name."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        about = json.dumps([name, array.dtype.str, array.shape])
        found.update(about.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def encode(update: NDArray[np.float64], weight: int, total: int) -> Vector:
    """Write a client's share of a mean as integers modulo 2^64; last, what to check by.

    Parameters
    ----------
    update : array, shape (size,)
    weight, total : int
        Of the client, and of all; the client knows its own.

    Returns
    -------
    array, shape (size + 2,)
        rint(update * weight / total * 2^40), the weight, and 1. The mean of n clients
        is wrong by n * 2^-41 at most.

    Raises
    ------
    WireError
        A number is not finite or beyond +-2^22, so that sums could wrap.
    """
    if not 0 <= weight <= total:
        raise WireError(
            f"the server says that all clients weigh {total} together, this one alone"
            f" weighs {weight}; both ends must run the same version of fedgraph_flwr"
        )
    largest = np.abs(update).max(initial=0.0)
    if not largest <= _MOST:  # nor is NaN
        raise WireError(
            f"a number of the update is {largest:g}, a sum takes up to {_MOST:g}; lower"
            " the learning rate or look at that client's data"
        )
    share = np.rint(update * (weight / max(total, 1) * 2.0**_FRACTION_BITS))
    return np.append(share.astype(np.int64), [weight, 1]).view(np.uint64)


def decode(summed: Vector, members: int, total: int) -> NDArray[np.float64] | None:
    """Read the mean of updates from a sum; None if pads did not cancel.

    Pads that are left make the mean next to nothing, and the last two numbers huge.
    """
    signed = summed.view(np.int64)
    if [int(n) for n in signed[-2:]] != [total, members]:
        return None
    return signed[:-2] / 2.0**_FRACTION_BITS
