"""Server side of GCFL and GCFL+: split clusters that pull apart, average the rest.

Xie et al. 2021, arXiv:2106.13423, Sec. 4. Symbols: Delta_i update of client i (a
vector of all shared tensors), I the clients of a cluster, eps_1 / eps_2 the
thresholds, alpha cosine similarity, beta DTW distance, Q_i history of norms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.robust_settings import RobustSettings
from fedgraph_flwr.core.secure_aggregation import UPDATE_NORM, may_drop_out
from fedgraph_flwr.core.wire import (
    NUM_EXAMPLES,
    NamedArrays,
    Parcel,
    flatten,
    select,
    with_prefix,
)
from fedgraph_flwr.core.words import client_ranges, name_clients, shortened
from fedgraph_flwr.methods.fedavg import DELTA, SHARED
from fedgraph_flwr.methods.gcfl import GRAD_NORM, GCFLParams

from .averaging import FloatArray, check_same_layout, unflatten
from .base import AbstractGraphStrategy
from .replies import Layout, layout_of

# Joins updates by client, given their weights; None: their weighted mean.
Join: TypeAlias = (
    Callable[[Mapping[int, FloatArray], Mapping[int, float]], FloatArray] | None
)
_MOST_SIDES = 16  # clients of which all cuts are looked at
_HAIR = 1e-12
_BLOCK = 64  # rows whose distances to all others are computed at a time


@dataclass(frozen=True, kw_only=True)
class GCFLState:
    """State of the server between rounds.

    ``clusters`` holds ascending client ids and ``theta`` the tensors of each cluster,
    in the same order; ``history`` is Q and ``norms`` the last updates' norms.
    ``too_small`` are parts that the last round would have split off, but for a rule.
    """

    clusters: tuple[tuple[int, ...], ...]
    theta: tuple[NamedArrays, ...]
    history: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    norms: Mapping[int, float] = field(default_factory=dict)
    too_small: tuple[tuple[int, ...], ...] = ()


def step(
    state: GCFLState,
    replies: Mapping[int, Parcel],
    params: GCFLParams,
    *,
    server_round: int,
    use_dtw: bool,
    uniform: bool = False,
    join: Join = None,
    least: int = 1,
    told: Mapping[int, float] | None = None,
) -> tuple[GCFLState, list[int]]:
    """One round: extend histories, split, average within the new clusters.

    Returns the new state and the positions (in the old state) of clusters that were
    split. A cluster is split only when all of its members replied: an older update is
    of another model, whose norm and direction the paper does not compare. ``uniform``
    averages updates without regard to training sizes; ``join`` takes the place of the
    mean, and no cluster gets fewer than the ``least`` clients that it needs. Where each
    update is a cluster's mean, ``told`` are the norms of the clients' own. Histories
    of a cluster grow in the same rounds, those in which all of its members replied:
    norms fall over the rounds, and older ones would cut off a client for having been
    away.

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
    norms = told or {c: float(np.linalg.norm(u)) for c, u in flat.items()}
    history = _extend(state.history, whole, replies, norms, params)

    clusters: list[tuple[int, ...]] = []
    theta: list[NamedArrays] = []
    split: list[int] = []
    too_small: list[tuple[int, ...]] = []
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
                norms=norms,
            )
            if weights is not None:
                sides = even_cut(weights, 1 if told is None else least)
                cut = [tuple(members[i] for i in rows) for rows in sides]
                if min(map(len, cut)) >= least:
                    parts = cut
                    split.append(position)
                    if use_dtw:  # at once, so that no second splits this round
                        history = dict.fromkeys(history, ())
                else:
                    too_small.append(min(cut, key=len))
        weights_of = dict.fromkeys(sizes, 1.0) if uniform else sizes
        for part in parts:
            clusters.append(part)
            theta.append(_advance(state.theta[position], part, flat, weights_of, join))
    new = GCFLState(
        clusters=tuple(clusters),
        theta=tuple(theta),
        history=history,
        norms=norms,
        too_small=tuple(too_small),
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
    norms: Mapping[int, float],
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
    largest = max(norms[c] for c in members)  # delta_max, Eq. (5)
    moving = largest > params.max_norm_threshold
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
    norms: Mapping[int, float],
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
            norm = norms[c]
        extended[c] = (*extended.get(c, ()), norm)[-params.seq_length :]
    return extended


def _advance(
    theta: NamedArrays,
    members: Sequence[int],
    flat: Mapping[int, FloatArray],
    weights: Mapping[int, float],
    join: Join,
) -> NamedArrays:
    """Theta_k + sum_i (n_i / N_k) Delta_i over the members that replied (Eq. 7)."""
    present = [c for c in members if c in flat]
    if not present:
        return theta
    total = sum(weights[c] for c in present)
    if not total:  # nobody there has anything to train on
        return theta
    if join is not None:
        mean = join({c: flat[c] for c in present}, weights)
    else:
        mean = np.zeros_like(flat[present[0]])
        for c in present:  # ascending, which fixes the rounding
            mean += (weights[c] / total) * flat[c]
    update = unflatten(mean, theta)
    return {n: np.add(a, update[n]) for n, a in theta.items()}


def mean_update_norm(updates: FloatArray) -> float:
    """Norm of the mean update, delta_mean; ``updates`` has one row per client.

    Source
    ------
    Xie et al. 2021, Eq. (4). Differs: uniform weights, as in the authors'
    ``server.py:compute_mean_update_norm``, with which the thresholds were tuned.
    """
    uniform = np.full(len(updates), 1 / len(updates))
    return float(np.linalg.norm(uniform @ updates))


def cosine_weights(updates: FloatArray) -> FloatArray:
    """Similarities 1 + cos(Delta_p, Delta_q), shape (n, n), in [0, 2].

    Source
    ------
    Xie et al. 2021, Sec. 4.2. Differs: clamped at 0, because for opposite updates
    rounding makes 1 + cos negative and the minimum cut fails.
    """
    norms = np.linalg.norm(updates, axis=1)
    products = np.maximum(np.outer(norms, norms), 1e-12)
    return np.clip(1.0 + (updates @ updates.T) / products, 0.0, 2.0)


def dtw_weights(series: FloatArray, *, standardize: bool = False) -> FloatArray:
    """Similarities max(beta) - beta from DTW distances beta between series.

    The result has shape (num_clients, num_clients).

    Parameters
    ----------
    series : float array, shape (num_clients, seq_length)
        Histories of norms.
    standardize : bool
        Divide each series by its standard deviation (ddof 0; no mean removal), unless
        that is below 1e-12.

    Source
    ------
    Xie et al. 2021, Sec. 4.3, Eq. (8); standardised variant:
    ``server.py:compute_pairwise_distances``.
    """
    rows = np.ascontiguousarray(series, np.float64)
    if standardize:
        deviation = rows.std(axis=1, keepdims=True)
        rows = rows / np.where(deviation < 1e-12, 1.0, deviation)
    beta = dtw_distances(rows)
    return np.asarray(beta.max() - beta)


def dtw_distances(rows: FloatArray) -> FloatArray:
    """DTW distances of all pairs: squared steps, no window, root at the end.

    Parameters
    ----------
    rows : float array, shape (num_clients, length)

    Returns
    -------
    float array, shape (num_clients, num_clients)
        The numbers of ``dtaidistance.dtw.distance``, which rounds squares otherwise:
        at most one unit in the last place apart, one pair in a thousand.

    Notes
    -----
    The recursion runs once over the cells (i, j) of two series, for the pairs of a
    block of rows with all rows at a time: 1,000 clients take seconds, and memory stays
    at ``_BLOCK`` rows.
    """
    n, length = rows.shape
    found = np.empty((n, n))
    for begin in range(0, n, _BLOCK):
        block = rows[begin : begin + _BLOCK, None]  # (block, 1, length)
        shape = (len(block), n)
        above = [np.full(shape, np.inf) for _ in range(length + 1)]
        above[0] = np.zeros(shape)
        for i in range(length):
            line = [np.full(shape, np.inf)]
            for j in range(length):
                cost = np.square(block[..., i] - rows[None, :, j])
                nearest = np.minimum(above[j], above[j + 1])
                line.append(cost + np.minimum(nearest, line[j], out=nearest))
            above = line
        found[begin : begin + _BLOCK] = np.sqrt(above[-1])
    return found


def min_cut(weights: FloatArray) -> tuple[list[int], list[int]]:
    """Split one cluster in two along its global minimum cut.

    If several nodes are tied most closely to those that were added, the lowest row is
    the next. If several cuts have the smallest weight, the first that is found counts.
    Returns row numbers of both sides, ascending; together ``range(n)``, 0 first.

    Parameters
    ----------
    weights : float array, shape (n, n)
        Symmetric, >= 0; larger is more alike. The diagonal is ignored.

    Raises
    ------
    ValueError
        Fewer than two rows.

    Source
    ------
    Stoer & Wagner 1997, as in Xie et al. 2021, Sec. 4.2.
    """
    n = len(weights)
    if n < 2:
        raise ValueError(f"a cut needs at least 2 clients, got {n}")
    between = np.array(weights, np.float64)  # of merged rows, in the lowest of them
    np.fill_diagonal(between, 0.0)
    merged = [[row] for row in range(n)]
    gone = np.zeros(n, bool)
    lightest, right = np.inf, [n]
    for size in range(n, 1, -1):
        before, last, weight = _phase(between, gone, size)
        if weight < lightest:
            lightest, right = weight, list(merged[last])
        merged[before] += merged[last]
        between[before] += between[last]
        between[:, before] = between[before]
        between[before, before] = 0.0
        gone[last] = True
    return sorted({*range(n)} - {*right}), sorted(right)


def even_cut(weights: FloatArray, least: int) -> tuple[list[int], list[int]]:
    """Split one cluster in two, both sides of ``least`` rows, along a light cut.

    With ``least`` 1 it is :func:`min_cut`. Else, up to 16 rows, it is the lightest, the
    first of equals; beyond it rows that are tied most to the smaller side of the
    minimum cut join it until there are enough, then single rows change sides as long as
    that makes the cut lighter. A side is short if there are not rows for two.
    """
    n = len(weights)
    if least == 1 or n < 2 * least:
        return min_cut(weights)
    ties = np.array(weights, np.float64)
    np.fill_diagonal(ties, 0.0)
    if n <= _MOST_SIDES:
        codes = np.arange(2 ** (n - 1))[:, None]  # row 0 is never on the other side
        sides = np.hstack([codes * 0, codes >> np.arange(n - 1) & 1]).astype(np.float64)
        sizes = sides.sum(axis=1)
        cut = np.sum((sides @ ties) * (1 - sides), axis=1)
        cut[(sizes < least) | (sizes > n - least)] = np.inf
        side = sides[cut.argmin()] > 0
    else:
        side = np.zeros(n, bool)
        side[min(min_cut(weights), key=len)] = True
        while side.sum() < least:
            side[np.where(side, -np.inf, ties @ side).argmax()] = True
        while True:
            saved = np.where(side, 1.0, -1.0) * (ties @ ~side - ties @ side)
            for half in (side, ~side):
                saved[half] = saved[half] if half.sum() > least else -np.inf
            row = int(saved.argmax())
            if saved[row] <= _HAIR:
                break
            side[row] = not side[row]
    rows = [*map(int, np.flatnonzero(side))]
    one, other = sorted([sorted({*range(n)} - {*rows}), rows])
    return one, other


def _phase(
    between: FloatArray, gone: NDArray[np.bool_], size: int
) -> tuple[int, int, float]:
    """Add rows one by one, the most tightly tied first, from row 0.

    Returns the last two rows that were added, and what ties the last one to all others:
    the cut of the phase.
    """
    tie = np.where(gone, -np.inf, between[0])
    tie[0], row = -np.inf, 0
    for _ in range(size - 2):
        row = int(tie.argmax())  # the lowest of equals
        tie[row] = -np.inf  # and stays so, whatever is added
        tie += between[row]
    last = int(tie.argmax())
    return row, last, float(tie[last])


@final
class GCFL(AbstractGraphStrategy):
    """GCFL (cosine of last updates) or, with ``use_dtw``, GCFL+ (DTW of histories)."""

    NO_HOLD_OUT = ""
    NO_RULE = ""
    UNSPLIT = "never split: FedAvg up to rounding"
    params: GCFLParams

    def __init__(self, *args: Any, use_dtw: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.use_dtw = use_dtw
        # By cluster: who was missing, since which round.
        self._held_up: dict[tuple[int, ...], dict[int, int]] = {}
        self._too_small: set[tuple[int, ...]] = set()

    @override
    @classmethod
    def why_no_sums(
        cls, robust: RobustSettings, settings: RunSettings, **options: Any
    ) -> str:
        if not options.get("use_dtw"):
            return "it compares directions of updates; gcfl+ compares their norms alone"
        if may_drop_out(settings):
            return "with min-fit-replies below 1 a cluster may be left with too few"
        return super().why_no_sums(robust, settings, **options)

    @override
    def sums(self) -> list[list[int]]:
        """Return the clusters."""
        return self.clusters()

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
        clusters = self.gcfl.clusters
        largest = max(range(len(clusters)), key=lambda k: (len(clusters[k]), -k))
        common = with_prefix(SHARED, self.gcfl.theta[largest])
        sent = dict.fromkeys(sorted(self.settings.never_train), common)
        for members, theta in zip(self.gcfl.clusters, self.gcfl.theta, strict=True):
            sent |= dict.fromkeys(members, with_prefix(SHARED, theta))
        return sent

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        return layout_of(with_prefix(DELTA, self.gcfl.theta[0]))

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """Run :func:`step`; also record norms and, for ``best_snapshot``, splits."""
        before = self.gcfl
        told = {c: float(p.metrics.get(UPDATE_NORM, 0)) for c, p in replies.items()}
        least = self.secagg.least if self.secagg.on else self.robust.least
        self._note_held_up(server_round, replies)
        self.gcfl, split = step(
            before,
            replies,
            self.params,
            server_round=server_round,
            use_dtw=self.use_dtw,
            uniform=self.settings.weighting == "uniform",
            join=self.join if self.robust.is_on else None,
            least=least,
            told=told if self.secagg.on else None,
        )
        for part in sorted({*self.gcfl.too_small} - self._too_small):
            self._too_small.add(part)
            log(
                WARNING,
                "round %d: a cluster needs %d clients (robust.rule %r,"
                " secure-aggregation.least), so that %s stay in theirs",
                server_round,
                least,
                self.robust.rule,
                name_clients(part),
            )
        for client in replies:
            self.note(server_round, client, "update_norm", self.gcfl.norms[client])
        # The authors' snapshot holds the accuracies of the round before the split.
        self.report.facts["snapshots"] = [
            list(before.clusters[position]) for position in split
        ]
        for position in split:
            whole = before.clusters[position]
            parts = [m for m in self.gcfl.clusters if set(m) <= set(whole)]
            into = shortened("; ".join(map(client_ranges, parts)))
            words = f"split {name_clients(whole)} into {into}"
            log(INFO, "round %d: %s", server_round, words)

    def _note_held_up(self, server_round: int, replied: Collection[int]) -> None:
        """Say once which cluster cannot be judged because a client is missing."""
        p = self.params
        for cluster in self.gcfl.clusters:
            known = self._held_up.get(cluster, {})
            new = sorted(set(cluster) - set(replied) - known.keys())
            if (
                not new
                or server_round <= p.min_round
                or len(cluster) < p.min_cluster_size
            ):
                continue
            self._held_up[cluster] = known | dict.fromkeys(new, server_round)
            words = f"the cluster of {name_clients(cluster)} cannot split without"
            log(WARNING, "round %d: %s %s", server_round, words, name_clients(new))

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
        self._held_up = {
            tuple(entry["cluster"]): {int(c): r for c, r in entry["missing"].items()}
            for entry in facts["held_up"]
        }

    @override
    def clusters(self) -> list[list[int]]:
        return [list(members) for members in self.gcfl.clusters]
