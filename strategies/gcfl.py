"""Server side of GCFL and GCFL+: split clusters that pull apart, average the rest.

Xie et al. 2021, arXiv:2106.13423, Sec. 4. Symbols: Delta_i update of client i (a
vector of all shared tensors), I the clients of a cluster, eps_1 / eps_2 the
thresholds, alpha cosine similarity, beta DTW distance, Q_i history of norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, final

import numpy as np
from flwr.common.logger import log
from typing_extensions import override

from fedgraph_flwr.core.wire import (
    NUM_EXAMPLES,
    NamedArrays,
    Parcel,
    select,
    with_prefix,
)
from fedgraph_flwr.core.words import client_ranges, name_clients, shortened
from fedgraph_flwr.methods.fedavg import DELTA, SHARED
from fedgraph_flwr.methods.gcfl import GRAD_NORM, GCFLParams

from .averaging import check_same_layout
from .base import AbstractGraphStrategy
from .gcfl_clustering import (
    FloatArray,
    cosine_weights,
    dtw_weights,
    flatten,
    max_update_norm,
    mean_update_norm,
    min_cut,
    unflatten,
)
from .replies import Layout, layout_of
from .round_report import Evaluation


@dataclass(frozen=True, kw_only=True)
class GCFLState:
    """State of the server between rounds.

    ``clusters`` holds ascending client ids and ``theta`` the tensors of each cluster,
    in the same order; ``history`` is Q and ``norms`` the last updates' norms.
    """

    clusters: tuple[tuple[int, ...], ...]
    theta: tuple[NamedArrays, ...]
    history: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    norms: Mapping[int, float] = field(default_factory=dict)


def step(
    state: GCFLState,
    replies: Mapping[int, Parcel],
    params: GCFLParams,
    *,
    server_round: int,
    use_dtw: bool,
    uniform: bool = False,
) -> tuple[GCFLState, list[int]]:
    """One round: extend histories, split, average within the new clusters.

    Returns the new state and the positions (in the old state) of clusters that were
    split. A cluster is split only when all of its members replied: an older update is
    of another model, whose norm and direction the paper does not compare. ``uniform``
    averages updates without regard to training sizes. Histories of a cluster grow in
    the same rounds, those in which all of its members replied: norms fall over the
    rounds, and older ones would cut off a client for having been away.

    Source
    ------
    Xie et al. 2021, Algorithm 1 and Eq. (7). Differs: Eq. (7) is a plain sum, which
    multiplies the step by the number of clients; we average by training size, as
    the authors' ``server.py:reduce_add_average`` does.
    """
    deltas = {c: select(DELTA, p.arrays) for c, p in sorted(replies.items())}
    check_same_layout(list(deltas.values()))
    flat = {c: flatten(d) for c, d in deltas.items()}
    sizes = {c: float(p.metrics[NUM_EXAMPLES]) for c, p in replies.items()}
    whole = {
        c for members in state.clusters if flat.keys() >= set(members) for c in members
    }
    history = _extend(state.history, whole, replies, flat, params)

    clusters: list[tuple[int, ...]] = []
    theta: list[NamedArrays] = []
    split: list[int] = []
    for position, members in enumerate(state.clusters):
        parts = [members]
        if whole.issuperset(members):
            weights = split_weights(
                members,
                flat,
                history,
                params,
                server_round=server_round,
                use_dtw=use_dtw,
            )
            if weights is not None:
                parts = [tuple(members[i] for i in rows) for rows in min_cut(weights)]
                split.append(position)
                if use_dtw:  # at once, so that no second cluster splits this round
                    history = dict.fromkeys(history, ())
        weights_of = dict.fromkeys(sizes, 1.0) if uniform else sizes
        for part in parts:
            clusters.append(part)
            theta.append(_advance(state.theta[position], part, flat, weights_of))
    new = GCFLState(
        clusters=tuple(clusters),
        theta=tuple(theta),
        history=history,
        norms={c: float(np.linalg.norm(u)) for c, u in flat.items()},
    )
    return new, split


def split_weights(
    members: Sequence[int],
    flat: Mapping[int, FloatArray],
    history: Mapping[int, Sequence[float]],
    params: GCFLParams,
    *,
    server_round: int,
    use_dtw: bool,
) -> FloatArray | None:
    """Similarities by which the cluster is cut; None if it must not split.

    Source
    ------
    Xie et al. 2021, Sec. 4.2: ||mean|| < eps_1 and max > eps_2; the guards on round
    and cluster size are from the authors' code. Differs: GCFL+ asks for full histories
    of the cluster's members, not of all clients; the same unless replies were missing.
    """
    if server_round <= params.min_round or len(members) < params.min_cluster_size:
        return None
    updates = np.stack([flat[c] for c in members])
    stalled = mean_update_norm(updates) < params.mean_norm_threshold
    moving = max_update_norm(updates) > params.max_norm_threshold
    if not (stalled and moving):
        return None
    if not use_dtw:
        return cosine_weights(updates)
    d = params.seq_length
    if any(len(history[c]) < d for c in members):
        return None
    series = np.array([history[c][-d:] for c in members])
    weights_dtw = dtw_weights(series, standardize=params.standardize)
    # Identical series make every cut minimal; then there is nothing to go by.
    return weights_dtw if weights_dtw.max() > 0 else None


def _extend(
    history: Mapping[int, Sequence[float]],
    whole: Iterable[int],
    replies: Mapping[int, Parcel],
    flat: Mapping[int, FloatArray],
    params: GCFLParams,
) -> dict[int, tuple[float, ...]]:
    """Q_i <- Q_i + [norm], for clients in ``whole``.

    Only the last ``seq_length`` are ever looked at.
    """
    extended = {c: tuple(q) for c, q in history.items()}
    for c in sorted(whole):
        if params.sends_norms:
            norm = float(replies[c].metrics.get(GRAD_NORM, 0.0))  # no epoch
        else:
            norm = float(np.linalg.norm(flat[c]))
        extended[c] = (*extended.get(c, ()), norm)[-params.seq_length :]
    return extended


def _advance(
    theta: NamedArrays,
    members: Sequence[int],
    flat: Mapping[int, FloatArray],
    weights: Mapping[int, float],
) -> NamedArrays:
    """Theta_k + sum_i (n_i / N_k) Delta_i over the members that replied (Eq. 7)."""
    present = [c for c in members if c in flat]
    if not present:
        return theta
    total = sum(weights[c] for c in present)
    if not total:  # nobody there has anything to train on
        return theta
    mean = np.zeros_like(flat[present[0]])
    for c in present:  # ascending, which fixes the rounding
        mean += (weights[c] / total) * flat[c]
    update = unflatten(mean, theta)
    return {n: np.add(a, update[n]) for n, a in theta.items()}


@final
class GCFL(AbstractGraphStrategy):
    """GCFL (cosine of last updates) or, with ``use_dtw``, GCFL+ (DTW of histories)."""

    NO_HOLD_OUT = ""
    UNSPLIT = "never split: FedAvg up to rounding"
    params: GCFLParams

    def __init__(self, *args: Any, use_dtw: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_dtw = use_dtw
        self._missing: dict[int, int] = {}  # client -> round since when
        self._held_up: dict[tuple[int, ...], dict[int, int]] = {}  # cluster -> missing

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        """Begin with one cluster that holds everybody who trains."""
        clients = tuple(self.trainers())
        self.gcfl = GCFLState(
            clusters=(clients,), theta=(arrays,), history=dict.fromkeys(clients, ())
        )

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Theta of the client's cluster, one object for all its members.

        A client that is held out from training has no update to be clustered by: it is
        sent the model of the cluster with most clients, the first of equals.
        """
        largest = max(range(len(self.gcfl.clusters)), key=self._size)
        common = with_prefix(SHARED, self.gcfl.theta[largest])
        sent = dict.fromkeys(sorted(self.settings.never_train), common)
        for members, theta in zip(self.gcfl.clusters, self.gcfl.theta, strict=True):
            sent |= dict.fromkeys(members, with_prefix(SHARED, theta))
        return sent

    def _size(self, position: int) -> tuple[int, int]:
        return len(self.gcfl.clusters[position]), -position

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect the update of every shared tensor."""
        return layout_of(with_prefix(DELTA, self.gcfl.theta[0]))

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Run :func:`step`; also record norms and, for ``best_snapshot``, splits."""
        before = self.gcfl
        self._look_for_missing(server_round, replies)
        self.gcfl, split = step(
            before,
            replies,
            self.params,
            server_round=server_round,
            use_dtw=self.use_dtw,
            uniform=self.settings.weighting == "uniform",
        )
        for client, parcel in replies.items():
            self.report.evaluations.append(
                Evaluation(
                    server_round=server_round,
                    client=client,
                    split="train",
                    point="update",
                    metric="update_norm",
                    value=self.gcfl.norms[client],
                    num_examples=int(parcel.metrics[NUM_EXAMPLES]),
                )
            )
        # The authors' snapshot holds the accuracies of the round before the split.
        self.report.facts["snapshots"] = [
            list(before.clusters[position]) for position in split
        ]
        for position in split:
            whole = before.clusters[position]
            parts = [m for m in self.gcfl.clusters if set(m) <= set(whole)]
            log(
                INFO,
                "round %d: split %s into %s",
                server_round,
                name_clients(whole),
                shortened("; ".join(map(client_ranges, parts))),
            )

    def _look_for_missing(self, server_round: int, replies: Iterable[int]) -> None:
        """Say once which cluster cannot be judged because a client is missing."""
        replied, least = set(replies), self.params.min_cluster_size
        self._missing = {
            c: self._missing.get(c, server_round)
            for c in set(self.trainers()) - replied
        }
        if server_round <= self.params.min_round:
            return
        for cluster in self.gcfl.clusters:
            known = self._held_up.get(cluster, {})
            missing = {c: self._missing[c] for c in cluster if c in self._missing}
            new = missing.keys() - known.keys()
            if len(cluster) < least or not new:
                continue
            self._held_up[cluster] = missing | known
            log(
                WARNING,
                "round %d: the cluster of %s cannot split without %s",
                server_round,
                name_clients(cluster),
                name_clients(new),
            )

    @override
    def remarks(self) -> dict[str, Any]:
        """Clusters that could not split, and who was missing, since which round."""
        return {"clusters_held_up": self._held_up_facts()} if self._held_up else {}

    def _held_up_facts(self) -> list[dict[str, Any]]:
        return [
            {"cluster": list(cluster), "missing": {str(c): r for c, r in of.items()}}
            for cluster, of in self._held_up.items()
        ]

    @override
    def models(self) -> dict[str, NamedArrays]:
        """One model per cluster, numbered as in ``clusters.json``."""
        return {f"cluster-{k}": theta for k, theta in enumerate(self.gcfl.theta)}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays: NamedArrays = {}
        for position, theta in enumerate(self.gcfl.theta):
            arrays |= with_prefix(f"{position}/", theta)
        facts = {
            "clusters": [list(members) for members in self.gcfl.clusters],
            "history": {str(c): list(q) for c, q in self.gcfl.history.items()},
            "missing": {str(c): since for c, since in self._missing.items()},
            "held_up": self._held_up_facts(),
        }
        return arrays, facts

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        clusters = tuple(tuple(members) for members in facts["clusters"])
        self.gcfl = GCFLState(
            clusters=clusters,
            theta=tuple(select(f"{k}/", arrays) for k in range(len(clusters))),
            history={int(c): tuple(q) for c, q in facts["history"].items()},
        )
        self._missing = {int(c): r for c, r in facts["missing"].items()}
        self._held_up = {
            tuple(entry["cluster"]): {int(c): r for c, r in entry["missing"].items()}
            for entry in facts["held_up"]
        }

    @override
    def clusters(self) -> list[list[int]]:
        return [list(members) for members in self.gcfl.clusters]
