"""Server side of FedAux: weights by the cosine of trained projections.

Zhuo et al. 2025, arXiv:2505.23864, Eq. 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel
from fedgraph_flwr.methods.fedaux import APV, FedAuxParams
from fedgraph_flwr.methods.fedavg import SHARED

from .personal import AbstractPersonalStrategy, cosine_attention

_ALIKE = 0.05  # of 1 / n: what is nearer to equal weights counts as such
_FURTHEST = "furthest"


@final
class FedAux(AbstractPersonalStrategy):
    """Every client receives an average of its own, by projections.

    All projections start from one vector and move a few steps in a round, so that at
    the published settings weights are nearly equal: a run in which they always were
    says so (``inert``).
    """

    params: FedAuxParams
    furthest = 0.0  # from 1 / n that a weight has been, in shares of it

    @override
    def personalise(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> NDArray[np.float64]:
        vectors = {c: p.arrays[SHARED + APV] for c, p in replies.items()}
        if self.params.compare == "apv-update":
            came = {c: self.personal[c][APV] for c in vectors}
            vectors = {c: np.subtract(v, came[c]) for c, v in vectors.items()}
        q = cosine_attention([*vectors.values()], self.params.alpha)
        self.furthest = max(self.furthest, float(np.abs(len(q) * q - 1).max()))
        return q

    @override
    def inert(self) -> str:
        if self.furthest > _ALIKE:
            return ""
        share = f"{self.furthest:.1%}"
        return f"weighed all clients alike, within {share}: FedAvg of its own model"

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        arrays, facts = super().state()
        return arrays, {**facts, _FURTHEST: self.furthest}

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        super().restore(arrays, facts)
        self.furthest = float(facts[_FURTHEST])
