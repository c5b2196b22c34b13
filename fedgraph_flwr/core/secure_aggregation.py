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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import RunSettings, Settings
from .errors import ConfigError, WireError
from .fields import Field
from .privacy_settings import PrivacySettings
from .rules import choice, flag, integer, number
from .tasks import TASKS
from .wire import (
    CLASS_WEIGHTS,
    EVAL,
    TRAIN_LOSS,
    NamedArrays,
    Scalar,
    count_key,
    evaluation_key,
)
from .words import shortened

MASK_KEY = "mask-key"  # told at roll call,
KNOWN_BY = "keys-known-by"  # and how the site knows the keys of others
NAMED = "fingerprints"
MASKED, LABEL = "masked", "mask-label"  # arrays of a reply
HANDED = "handed-in-for"  # array: ids of the sum of this round, if a client is in one
HAND_IN = "train.hand_in"  # kind of message
MEMBERS, KEYS = "members", "mask-keys"  # facts for a client,
MISSED = "missed-models"  # and digests of what others trained from without it
UPDATE_NORM = "update-norm"  # metric, where clusters are made by norms
KEY_PATTERN = "[0-9a-f]{256}"  # of what a client tells
_FRACTION_BITS = 30
_MOST = 2.0**24  # of weight times a number: then no sum of 256 wraps
_MOST_MEMBERS = 256  # each pair of them has a pad
_SCORE_BITS = 20
_MOST_SCORES = 2.0**33  # of count times a score: then no sum of 256 wraps
_VERSION = 1  # of what a label is made of
_IDS = re.compile(r"[0-9]{1,9}( [0-9]{1,9})*")
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
    scores: str = choice("each", "each", "sum")
    """`sum`: scores and losses leave in sums alone, and the run has their means over
    all items."""
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
    if not sums.on and sums.scores == "each":
        return
    count = settings.num_clients - len(settings.never_train)
    beside = sorted({f.what for f in sends})
    problem = ""
    single = {
        "class-weights": settings.class_weights == "federation",
        "evaluate-on": settings.evaluate_on == "all",
        "held-out-clients": bool(settings.held_out_clients),
        "tell-statistics": settings.tell_statistics,
    }
    if sums.scores == "sum" and (not sums.on or any(single.values())):
        key = next((k for k, tells in single.items() if tells), "")
        told = f"{key} tells of single clients; leave {key} out of the run config"
        raise ConfigError(
            "secure-aggregation.scores is 'sum', but "
            + (told if key else "secure-aggregation.on is false; set it to true")
            + ", or set secure-aggregation.scores to 'each'"
        )
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
    others = ", and believed keys when first seen for the others"
    says = (
        f"secure-aggregation: the server saw sums of {len(known_by)} updates or fewer,"
        " and no single one; sites compared fingerprints of keys for"
        f" {len(compared)} of {len(known_by)} clients"
        f"{others if len(compared) < len(known_by) else ''}"
    )
    if sums.scores == "sum":
        says += "; scores are means over the items of all, none is of a single client"
    facts = {"members": sorted(known_by), "compared_by": compared}
    return {"secure_aggregation": {"says": says, **facts}}


def share_of_noise(
    sums: SecureAggregation, settings: RunSettings, not_counted: int
) -> float:
    """Part of ``update-noise`` that each member of a sum adds; 1 if none is shared.

    Independent noise adds up by its variance: what a sum of the fewest members has,
    without those that are not counted on, is then the whole. A client hands in for no
    fewer.
    """
    if not not_counted:
        return 1.0
    return float(1 / np.sqrt(fewest_members(sums, settings) - not_counted))


def check_shared_noise(
    sums: SecureAggregation,
    settings: RunSettings,
    privacy: PrivacySettings,
    *,
    has_clusters: bool,
) -> None:
    """Refuse noise of which each member adds a part where it would not be enough."""
    count, problem = privacy.update_noise_shared, ""
    fewest = fewest_members(sums, settings)
    if not (sums.on and privacy.update_clip):
        problem = "needs secure-aggregation.on = true and privacy.update-clip above 0"
    elif settings.weighting != "uniform":
        problem = 'needs weighting "uniform", as a weight multiplies an update'
    elif has_clusters:
        problem = "needs a method without clusters, for which norms of updates leave"
    elif count > fewest - 2:
        problem = (
            f"may be {fewest - 2} at most, as a sum has {fewest} members or more"
            " (secure-aggregation.least, if min-fit-replies is below 1) and two must"
            " be counted on"
        )
    if count and problem:
        raise ConfigError(
            f"privacy.update-noise-shared is {count}, but it {problem}; correct it, or"
            " set it to 0"
        )


def may_drop_out(settings: RunSettings) -> bool:
    """Whether clients train first and hand in when it is known who has trained."""
    return settings.min_fit_replies < 1


def fewest_members(
    sums: SecureAggregation, settings: RunSettings, *, has_clusters: bool = False
) -> int:
    """Return of how many clients each sum is at least; a client checks it."""
    may_lack = may_drop_out(settings) or has_clusters
    return sums.least if may_lack else settings.num_training


def summed_scores(sums: SecureAggregation, settings: RunSettings) -> tuple[str, ...]:
    """Names of the scores whose sums are in a vector, whichever of them are due."""
    if sums.scores == "each":
        return ()
    found = {TRAIN_LOSS: None}
    for task in (t for t in TASKS if t.key == settings.task):
        for split in task.splits:
            for point in ("post_aggregation", "post_training"):
                for metric in ("loss", task.metric, *task.also):
                    found[evaluation_key(split, point, metric)] = None
    return tuple(found)


def encode_scores(
    names: Iterable[str], metrics: Mapping[str, int | float]
) -> NDArray[np.float64]:
    """Make two rows of each score: count times score, in 2^-20, and the count.

    Both are 0 of a score that is not there, or is no number.
    """
    found = []
    for name in names:
        score = float(metrics.get(name, np.nan))
        count = metrics.get(count_key(name.removeprefix(EVAL).partition("/")[0]), 0)
        known = count * np.isfinite(score)
        total = np.clip(known * np.nan_to_num(score), -_MOST_SCORES, _MOST_SCORES)
        found += [np.rint(total * 2.0**_SCORE_BITS), known]
    return np.array(found, np.float64)


def decode_scores(
    names: Iterable[str], summed: NDArray[np.float64]
) -> dict[str, tuple[float, int]]:
    """Read mean scores and their counts from a sum, of those that somebody has."""
    rows = zip(names, summed.reshape(-1, 2), strict=True)
    return {n: (t / 2.0**_SCORE_BITS / k, int(k)) for n, (t, k) in rows if k > 0}


@dataclass(frozen=True)
class SumOf:
    """The clients of a sum, ascending, and the keys of all clients that train."""

    members: tuple[int, ...]
    keys: Mapping[int, str]

    def to_facts(self) -> dict[str, Scalar]:
        """Write it into a parcel to a client."""
        ids = " ".join(map(str, self.members))
        return {MEMBERS: ids, KEYS: self._keys()}

    def _keys(self) -> str:
        return json.dumps({str(c): self.keys[c] for c in sorted(self.keys)})

    @classmethod
    def from_facts(cls, facts: Mapping[str, Scalar]) -> SumOf:
        """Read what :meth:`to_facts` wrote.

        Raises
        ------
        WireError
            It is not there, or malformed. A key in capitals is: it would be another
            text, and the same key.
        """
        ids = facts.get(MEMBERS)
        try:
            given = dict(json.loads(str(facts.get(KEYS))))
            keys = {int(c): str(key) for c, key in given.items()}
        except (ValueError, TypeError, RecursionError):
            keys = {}
        if isinstance(ids, str) and _IDS.fullmatch(ids):
            members = tuple(map(int, ids.split()))
            are_keys = all(re.fullmatch(KEY_PATTERN, key) for key in keys.values())
            if are_keys and list(members) == sorted(keys.keys() & {*members}):
                return cls(members, keys)
        raise WireError(
            f"the server's message does not say whose sum it asks for: {MEMBERS} is"
            f" {shortened(ids)}; both ends must run the same version of fedgraph_flwr"
        )

    def label(
        self,
        *,
        experiment: str,
        run: int,
        server_round: int,
        config_sha256: str,
        history: str,
        size: int,
    ) -> bytes:
        """SHA-256 of all that members must agree on.

        Pads of another label are independent: whoever was told something else makes
        noise of the sum, and shows nothing.

        Parameters
        ----------
        server_round : int
            Below 0 for scores after the last one, which are no update.
        size : int
            Of the vectors: pads of a short one are the beginning of a long one's.
        history : str
            :func:`follow` of what members trained from, in this and earlier rounds: the
            state that a client keeps depends on all of it.
        """
        about = {
            "version": _VERSION,
            "experiment": experiment,
            "run": run,
            "round": server_round,
            "members": list(self.members),
            "keys": self._keys(),
            "config": config_sha256,
            "history": history,
            "size": size,
        }
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).digest()


def follow(history: str, received: Iterable[str]) -> str:
    """Add what clients train from to a history, in order."""
    for one in received:
        history = hashlib.sha256(f"{history} {one}".encode()).hexdigest()
    return history


def digest(arrays: NamedArrays, facts: Mapping[str, Scalar]) -> str:
    """SHA-256 of what training depends on: all arrays, and weights of classes."""
    found = hashlib.sha256(str(facts.get(CLASS_WEIGHTS, "")).encode())
    for name, array in sorted(arrays.items()):
        about = json.dumps([name, array.dtype.str, array.shape])
        found.update(about.encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def encode(
    update: NDArray[np.float64], weight: int, scores: NDArray[np.float64]
) -> Vector:
    """Write a client's part of a mean as integers modulo 2^64; last, what to check by.

    No number of the server's is in it: sums of one update on several grids would show
    single numbers.

    Returns
    -------
    array, shape (size + len(scores) + 2,)
        rint(update * weight * 2^30), the rows of :func:`encode_scores`, the client's
        own weight, and 1. A mean is wrong by 2^-31 at most.

    Raises
    ------
    WireError
        A number is not finite, or so large that sums could wrap.
    """
    largest = weight * np.abs(update).max(initial=0.0)
    if not largest <= _MOST:  # nor is NaN
        raise WireError(
            f"a number of the update, times {weight} training items, is {largest:g}, a"
            f" sum takes up to {_MOST:g}; lower the learning rate, look at that"
            ' client\'s data, or set weighting to "uniform"'
        )
    share = np.rint(update * (weight * 2.0**_FRACTION_BITS))
    numbers = np.concatenate([share, scores, [weight, 1]])
    return numbers.astype(np.int64).view(np.uint64)


def length(size: int, scores: Collection[str]) -> int:
    """Length of a vector: an update, two numbers for each score, and the last two."""
    return size + 2 * len(scores) + 2


def decode(
    summed: Vector, members: int, total: int, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Read a mean of updates, and sums of scores; None if pads did not cancel.

    Then the last two numbers are not those of the members and their weights.
    """
    signed = summed.view(np.int64)
    if [int(n) for n in signed[-2:]] != [total, members]:
        return None
    mean = signed[:size] / (max(total, 1) * 2.0**_FRACTION_BITS)
    return mean, signed[size:-2].astype(np.float64)
