"""The one place where a site's replies leave: what is in them is checked here.

What a run asks for is checked before (``policy``). Here it does not count what was
asked: a reply that holds anything the site's policy forbids does not leave, whatever
made it. A record, a number or a text that has no known name does not leave either.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from clients.letters import is_sealed
from clients.privacy.site import Release

from ..common_fields import COMMON
from ..core.errors import FedGraphError, PolicyError, WireError, full_reason
from ..core.fields import Field, Kind, find
from ..core.privacy_settings import METRIC as PRIVACY
from ..core.secure_aggregation import HAND_IN
from ..core.wire import (
    FRESH_START,
    NO_CLIENTS,
    OPENING,
    SITE,
    TIMING,
    NamedArrays,
    Parcel,
    Scalar,
    pack,
    record_sizes,
    unpack,
)
from ..methods.fedavg import DELTA, SHARED
from ..resolve import Resolved
from .node_config import NodeConfig
from .policy import OPEN, Policy

Array = NDArray[Any]
KINDS = ("query", f"query.{OPENING}", "train", HAND_IN, "evaluate")  # of messages
_KEPT_ON_FAILURE = (PRIVACY, *TIMING)
_PAGES = {kind.__name__: kind.PAGE for kind in FedGraphError.__subclasses__()}
_KEY = re.compile(rf"policy \(({'|'.join(Policy.config_fields())})\b")
# How what is sent follows from what came and the noisy update, to the bit.
_MADE: Mapping[str, Callable[[Array, Array], Array]] = {
    SHARED: lambda came, step: came + step,
    DELTA: lambda came, step: (came + step) - came,
}


@dataclass(kw_only=True)
class Visit:
    """One message at a node: what its policy allows, and what was done for it."""

    node: NodeConfig
    policy: Policy = OPEN
    resolved: Resolved | None = None
    releases: dict[int, list[Release]] = field(default_factory=dict)
    before: dict[int, Mapping[str, float]] = field(default_factory=dict)
    spent: dict[int, Callable[[], Mapping[str, float]]] = field(default_factory=dict)
    consents: dict[int, list[str]] = field(default_factory=dict)
    withheld: dict[int, list[str]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    sums: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    # Of the message's kind, of what came and of what is to leave it makes what leaves.
    cover: Callable[[str, RecordDict, RecordDict], RecordDict] | None = None
    # Names the sum that a client trains for, if its members share noise.
    sum_name: Callable[[int, Parcel, Mapping[str, Scalar]], str] | None = None


def check_kind(message_type: str) -> None:
    """Refuse a message of a kind that no policy knows."""
    if message_type not in KINDS:
        raise PolicyError(
            f"this site answers messages of the kinds {', '.join(KINDS)} alone; both"
            " ends must run the same version of fedgraph_flwr"
        )


def let_out(now: Visit, kind: str, asked: RecordDict, reply: RecordDict) -> RecordDict:
    """Return what of a reply may leave; a parcel that may not becomes its refusal.

    Raises
    ------
    PolicyError
        The reply holds something without a name.
    """
    try:
        parcels, header = unpack(reply)
    except WireError as error:
        raise PolicyError(
            f"the reply cannot be read, so nothing of it leaves: {error}"
        ) from error
    came = _asked_arrays(asked) if now.policy.needs_clip else {}
    passed = {
        client: _passed(now, kind, client, parcel, came.get(client, {}))
        for client, parcel in parcels.items()
    }
    # Made anew: what a reply holds beside what was read of it does not leave.
    return pack(passed, _header(header))


def _asked_arrays(asked: RecordDict) -> dict[int, NamedArrays]:
    try:
        return {client: p.arrays for client, p in unpack(asked)[0].items()}
    except WireError:  # then nothing was drawn for it either
        return {}


def _header(header: Mapping[str, Scalar]) -> dict[str, Scalar]:
    if set(header) - {"error", NO_CLIENTS, SITE}:
        raise _unnamed("an entry of the header")
    reasons = {"error", NO_CLIENTS} & set(header)
    return {**header, **{k: for_others(str(header[k])) for k in reasons}}


def for_others(reason: str) -> str:
    """Class of an error and the page that explains it; its text stays at the site.

    Of a policy that forbids something also its key. Class and key are from fixed lists,
    as a run config and a server's model can choose what goes wrong at a site.
    """
    kind, _, text = reason.partition(": ")
    if kind not in _PAGES and not hasattr(builtins, kind):
        kind = "Error"
    key = _KEY.search(text) if kind == PolicyError.__name__ else None
    return (
        f"{kind}{f' ({key[1]})' if key else ''}: see"
        f" {_PAGES.get(kind, FedGraphError.PAGE)}; the text stands in the log of the"
        " site"
    )


def _passed(
    now: Visit, kind: str, client: int, parcel: Parcel, came: NamedArrays
) -> Parcel:
    """Let a parcel pass, less what is withheld; or say why it may not."""
    policy = now.policy
    try:
        found = _fields(now, parcel)
        if not parcel.error:
            _check_consents(policy, kind, parcel, found.values())
            _check_arrays(now, client, parcel, came)
    except PolicyError as error:
        parcel = replace(parcel, error=full_reason(error))
    if parcel.error:
        now.failures[client] = parcel.error
        return failure(parcel)
    keys = {f.consent for f in found.values()} - {"", "scores"}
    keys |= {"raw_features"} if kind == KINDS[1] and parcel.arrays else set()
    now.consents[client] = sorted(map(Policy.key, keys))
    if FRESH_START in parcel.metrics:  # a key of node-config
        now.consents[client].append(FRESH_START)
    scores = [n for (_, n), f in found.items() if f.consent == "scores"]
    if policy.scores or not scores:
        return parcel
    now.withheld[client] = ["scores"]
    rest = {k: v for k, v in parcel.metrics.items() if k not in scores}
    return replace(parcel, metrics=rest)


def failure(parcel: Parcel) -> Parcel:
    """Keep of a failure its class, what the client had spent of privacy, and times."""
    metrics = parcel.metrics.items()
    kept = {k: v for k, v in metrics if k.startswith(_KEPT_ON_FAILURE)}
    return Parcel(error=for_others(parcel.error), metrics=kept)


def _fields(now: Visit, parcel: Parcel) -> dict[tuple[Kind, str], Field]:
    """Find the declared fields of a parcel; refuse numbers and texts that none is."""
    known = (*COMMON, *(now.resolved.params.sends() if now.resolved else ()))
    found: dict[tuple[Kind, str], Field] = {}
    for kind, named in (
        (Kind.ARRAY, {**parcel.arrays, **parcel.evaluation}),
        (Kind.NUMBER, parcel.metrics),
        (Kind.TEXT, parcel.facts),
    ):
        for name in named:
            declared = find(known, kind, name)
            if declared is None and kind is not Kind.ARRAY:  # plug-ins send their own
                raise _unnamed(kind.value)
            if declared and parcel.facts.get(name) != "":  # which tells nothing
                found[kind, name] = declared
    return found


def _unnamed(what: str) -> PolicyError:
    return PolicyError(
        f"the reply of this site holds {what} that its policy has no name for, so it"
        " does not leave"
    )


def _check_consents(
    policy: Policy, kind: str, parcel: Parcel, found: Collection[Field]
) -> None:
    """Refuse fields that a policy keeps; scores are withheld later instead."""
    if kind == "query" and (parcel.arrays or parcel.evaluation):
        raise _kept("arrays at roll call", "no policy allows that")
    if kind == KINDS[1] and parcel.arrays and not policy.raw_features:
        raise _kept("feature rows of nodes", "raw-features")
    for f in found:
        if f.consent not in ("", "scores") and not getattr(policy, f.consent):
            raise _kept(f.what, Policy.key(f.consent))
        if policy.needs_clip and not f.is_clean:
            raise _kept(f.what, _CLIP)


def _check_arrays(now: Visit, client: int, parcel: Parcel, came: NamedArrays) -> None:
    policy = now.policy
    if policy.sealed_only:
        letters = [*parcel.arrays.values(), *parcel.evaluation.values()]
        if not all(a.dtype == np.uint8 and is_sealed(a.tobytes()) for a in letters):
            raise _kept("arrays that are not sealed", "sealed-only")
    if not policy.needs_clip:
        return
    good = [
        r
        for r in now.releases.get(client, [])
        if 0 < r.clip <= policy.update_clip_max
        and (r.in_sums if policy.shared_noise else r.noise) >= policy.update_noise_min
    ]
    for name, array in parcel.arrays.items():
        if not _is_released(name, array, came, good):
            raise _kept("arrays that are no clipped update with noise", _CLIP)
    if parcel.evaluation and not _is_derived(now.resolved, parcel):
        raise _kept("arrays beside clipped updates", _CLIP)


_CLIP = "update-clip-max, update-noise-min"


def _kept(what: str, key: str) -> PolicyError:
    return PolicyError(
        f"the reply of this site held {what}, which its policy ({key}) does not let"
        " out; nothing of that client left"
    )


def _is_released(
    name: str, sent: Array, came: NamedArrays, releases: Collection[Release]
) -> bool:
    """Whether an array is what came plus a noisy update that was paid for."""
    for prefix, made in _MADE.items():
        base = came.get(SHARED + name.removeprefix(prefix))
        if not name.startswith(prefix) or base is None:
            continue
        for step in (s for r in releases for s in r.update):
            if step.shape == sent.shape == base.shape and _same(made(base, step), sent):
                return True
    return False


def _is_derived(resolved: Resolved | None, parcel: Parcel) -> bool:
    """Whether what is handed over follows from arrays that passed."""
    if resolved is None or not parcel.arrays:
        return False
    expected = resolved.method.client.derived(parcel.arrays)
    return (
        bool(expected)
        and expected.keys() == parcel.evaluation.keys()
        and all(
            _same(array, parcel.evaluation[name]) for name, array in expected.items()
        )
    )


def _same(one: Array, other: Array) -> bool:
    is_alike = one.dtype == other.dtype and one.shape == other.shape
    return is_alike and one.tobytes() == other.tobytes()


def check_size(policy: Policy, content: RecordDict) -> None:
    """Refuse a reply that is larger than the policy allows."""
    if not policy.reply_bytes_max:
        return
    if sum(size for *_, size in record_sizes(content)) > policy.reply_bytes_max:
        raise PolicyError(
            "the reply of this site is larger than its policy (reply-bytes-max ="
            f" {policy.reply_bytes_max}) allows; take a smaller model, or fewer clients"
            " a site"
        )
