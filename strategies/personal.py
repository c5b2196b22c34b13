"""Base of strategies that give every client a model of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedavg import SHARED

from .averaging import check_same_layout, on_all_cores, outweighing
from .base import AbstractGraphStrategy
from .replies import Layout, layout_of

_BLOCK = 1 << 22  # numbers that a thread mixes at a time; bounds memory


def mix(
    models: Sequence[NamedArrays], weights: NDArray[np.float64]
) -> list[NamedArrays]:
    """Average all models once for each row of ``weights``.

    Parameters
    ----------
    models : sequence of dict of str to array
        In ascending client order.
    weights : float64 array, shape (num_rows, num_models)
        Entries >= 0; row i, normalised, makes model i of the result.

    Returns
    -------
    list of dict of str to array
        As :func:`~strategies.averaging.weighted_mean` of each row, up to rounding in
        double precision; by products of matrices, as n means of n models take long.

    Raises
    ------
    WireError
        Names or shapes differ, or a floating array is not finite.
    ValueError
        Weights that do not fit the models.
    """
    totals = weights.sum(axis=1, keepdims=True)
    if weights.shape[1:] != (len(models),) or weights.min() < 0 or totals.min() <= 0:
        raise ValueError(
            f"weights must be of shape (num_rows, {len(models)}), >= 0 and not all zero"
            f" in a row, got {weights.tolist()}"
        )
    check_same_layout(models)
    shares = weights / totals
    mixed: list[NamedArrays] = [{} for _ in weights]
    for name, first in models[0].items():
        if not np.issubdtype(first.dtype, np.floating):
            for model in mixed:
                model[name] = first.copy()
            continue
        for model in mixed:
            model[name] = np.empty(first.shape, first.dtype)
        into = [model[name].reshape(-1) for model in mixed]
        _mix([m[name].ravel() for m in models], shares, into)
    return mixed


def _mix(
    vectors: Sequence[NDArray[Any]],
    shares: NDArray[np.float64],
    into: Sequence[NDArray[Any]],
) -> None:
    """Write rows of ``shares`` times vectors, in the vectors' dtype."""
    step = max(1, _BLOCK // len(vectors))

    def mix_block(begin: int) -> None:
        columns = slice(begin, begin + step)
        means = shares @ np.stack([v[columns] for v in vectors], dtype=np.float64)
        for target, mean in zip(into, means, strict=True):
            target[columns] = mean

    for _ in on_all_cores(mix_block, range(0, vectors[0].size, step)):
        pass


def cosine_attention(
    embeddings: Sequence[NDArray[Any]], alpha: float
) -> NDArray[np.float64]:
    """q_ij = exp(alpha cos(e_i, e_j)) / sum over j, shape (n, n).

    A zero embedding has cosine 0 with all others.

    Source
    ------
    Baek et al. 2023, arXiv:2206.10206, and the authors' ``models/fedpub/server.py``.
    """
    e = np.stack(embeddings).astype(np.float64)
    e /= np.maximum(np.linalg.norm(e, axis=1, keepdims=True), 1e-12)
    scores = np.exp(alpha * (e @ e.T - 1))  # cosines are at most 1
    weights: NDArray[np.float64] = scores / scores.sum(axis=1, keepdims=True)
    return weights


class AbstractPersonalStrategy(AbstractGraphStrategy):
    """Client i receives an average of the clients' models with weights of its own.

    A paper fills in :meth:`personalise`. A client that did not reply keeps the model
    it had, and is in nobody's average. The run stores q, (num_clients, num_clients),
    NaN where a client was absent.
    """

    OWN_CLUSTERS = True
    NO_RULE = "each client has an average of its own, which leaves unlike ones out"
    outweighing = ""  # by the weights of the last round

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        self.personal: dict[int, NamedArrays] = dict.fromkeys(
            sorted(self.clients), arrays
        )

    @abstractmethod
    def personalise(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> NDArray[np.float64]:
        """Weights q, (num_replies, num_replies): row i averages for the i-th client.

        Replies are in ascending client order; their ``arrays`` hold what the client
        sent, shared tensors and ``EXTRA_UPLINK``.
        """

    def extra_downlink(self, server_round: int) -> NamedArrays:  # noqa: ARG002
        """Further arrays to send, the same to every client; none by default."""
        return {}

    @override
    def outgoing(self, server_round: int) -> dict[int, NamedArrays]:
        """Send each client its model; equal models travel as one record."""
        extra = self.extra_downlink(server_round)
        made: dict[int, NamedArrays] = {}  # by the model's identity
        for model in self.personal.values():
            if id(model) not in made:
                made[id(model)] = {**with_prefix(SHARED, model), **extra}
        return {c: made[id(model)] for c, model in self.personal.items()}

    @override
    def uplink(self, server_round: int, client: int) -> Layout:
        """Expect the model, and what weights are made from."""
        model = with_prefix(SHARED, self.personal[client])
        return {**layout_of(model), **self.extra_uplink(server_round, client)}

    def extra_uplink(self, server_round: int, client: int) -> Layout:  # noqa: ARG002
        """Arrays that clients send beside their models; none by default."""
        return {}

    @override
    def step(self, server_round: int, replies: dict[int, Parcel]) -> None:
        """W_i <- sum_j q_ij W_j over the clients that replied."""
        q = np.asarray(self.personalise(server_round, replies), np.float64)
        averages = mix([select(SHARED, p.arrays) for p in replies.values()], q)
        self.keep("q", replies, q)
        self.personal |= dict(zip(replies, averages, strict=True))
        own, in_all = q.diagonal(), q.sum(axis=0)
        weights = dict(zip(replies, in_all.tolist(), strict=True))
        words = outweighing(weights, self.sites)
        if words and not self.outweighing:
            log(WARNING, "round %d: %s", server_round, words)
        self.outweighing = words
        for row, client in enumerate(replies):
            self.note(server_round, client, "self_weight", own[row])
            self.note(server_round, client, "weight_in_all", in_all[row])

    def keep(
        self, name: str, replies: Mapping[int, Parcel], matrix: NDArray[np.float64]
    ) -> None:
        """Let the run store a matrix of clients that replied, NaN for the others."""
        everybody = sorted(self.clients)
        at = np.searchsorted(everybody, list(replies))
        full = np.full((len(everybody), len(everybody)), np.nan)
        full[np.ix_(at, at)] = matrix
        self.report.arrays[name] = full

    @override
    def models(self) -> dict[str, NamedArrays]:
        return {f"client-{c}": model for c, model in sorted(self.personal.items())}

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays: NamedArrays = {}
        for client, model in self.personal.items():
            arrays |= with_prefix(f"{client}/", model)
        return arrays, {"clients": sorted(self.personal)}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        self.personal = {int(c): select(f"{c}/", arrays) for c in facts["clients"]}
