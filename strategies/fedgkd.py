"""Server side of FedGKD: relate clients by their distilled graphs, average for each.

Pan et al. 2023, Sec. 5.3 and Algorithm 1; the paper's two exchanges per round are one
here, as what is distilled depends on the client's own model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from typing import Any, final

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray
from typing_extensions import override

from fedgraph_flwr.core.seeding import derive_seed, numpy_rng
from fedgraph_flwr.core.wire import NamedArrays, Parcel, select, with_prefix
from fedgraph_flwr.methods.fedgkd import (
    FEATURE_MAPS,
    FEATURES,
    NOISE_SEED,
    X0,
    Y0,
    FedGKDParams,
)

from .fedgkd_relator import (
    attention,
    collapse_risk,
    largest_column_sum,
    relatedness,
    similarity,
)
from .personal import AbstractPersonalStrategy
from .replies import Layout

_KEPT = "features/"


def common_start(
    seed: int, draw: int, *, nodes_per_class: int, num_features: int, num_classes: int
) -> NamedArrays:
    """X0 (nodes_per_class * num_classes, num_features), y0 and the seed of the noise.

    X0 is standard normal; y0 names each class ``nodes_per_class`` times, in order.
    Tensors travel, as another version of NumPy may draw others from the same seed.
    """
    y0 = np.repeat(np.arange(num_classes), nodes_per_class)
    rng = numpy_rng(seed, "server", draw, "x0")
    return {
        X0: rng.standard_normal((len(y0), num_features), np.float32),
        Y0: y0.astype(np.int64),
        NOISE_SEED: np.array([derive_seed(seed, "server", draw, "gumbel")]),
    }


@final
class FedGKD(AbstractPersonalStrategy):
    """Averages for each client by weights q = softmax(tau_s S), S a kernel of R.

    With "static" distillation a client sends its task features once, and they count
    from then on. The run stores R, S and q.
    """

    params: FedGKDParams

    @override
    def initialise(self, arrays: NamedArrays) -> None:
        super().initialise(arrays)
        self.kept: dict[int, NDArray[np.floating[Any]]] = {}  # of static distillation

    @override
    def extra_downlink(self, server_round: int) -> NamedArrays:
        """Send what clients distil from, if they are to distil."""
        p = self.params
        if server_round > self.last_round or not self._distils():
            return {}  # the closing evaluation, or all is known
        is_static = p.distillation == "static"
        info = next(iter(self.clients.values()))
        return common_start(
            self.settings.seed,
            1 if is_static else server_round,
            nodes_per_class=p.nodes_per_class,
            num_features=info.num_features,
            num_classes=info.num_classes,
        )

    def _distils(self) -> bool:
        """Whether clients are to distil; not once all their features are kept."""
        is_static = self.params.distillation == "static"
        return not is_static or len(self.kept) < len(self.clients)

    @override
    def extra_uplink(self, server_round: int, client: int) -> Layout:
        """Expect task features if clients are to distil."""
        if not self._distils():
            return {}
        info = self.clients[client]
        rows = self.params.nodes_per_class * info.num_classes
        columns = {
            "x": info.num_features,
            "h": self.settings.hidden_dim,
            "y": info.num_classes,
        }
        return {
            FEATURES + part: ("float32", (rows, columns[part]))
            for part in FEATURE_MAPS[self.params.feature_map]
        }

    @override
    def personalise(
        self, server_round: int, replies: Mapping[int, Parcel]
    ) -> NDArray[np.float64]:
        p = self.params
        r = relatedness(self._features(replies))
        s = similarity(r, p.kernel, tau=p.tau)
        q = attention(s, p.tau_s)
        self.keep("R", replies, r)
        self.keep("S", replies, s)
        self._tell(server_round, r, q)
        return q

    def _features(
        self, replies: Mapping[int, Parcel]
    ) -> list[NDArray[np.floating[Any]]]:
        """M_i of the clients that replied: of this round, or kept from the first."""
        parts = [FEATURES + part for part in FEATURE_MAPS[self.params.feature_map]]
        found = {}
        for client, parcel in replies.items():
            if client in self.kept:
                found[client] = self.kept[client]
                continue
            found[client] = np.hstack([parcel.arrays[n] for n in parts])
        if self.params.distillation == "static":
            self.kept |= found
        return list(found.values())

    def _tell(
        self, server_round: int, r: NDArray[np.float64], q: NDArray[np.float64]
    ) -> None:
        p, n = self.params, len(q)
        largest = largest_column_sum(q)
        log(
            INFO,
            "round %d: relatedness %.3f to %.3f, own weight %.3f, largest column sum"
            " %.2f of %d",
            server_round,
            r.min(),
            r[~np.eye(n, dtype=bool)].max(initial=-1.0),
            np.diag(q).mean(),
            largest,
            n,
        )
        is_first = server_round == self.first_round
        if is_first and p.kernel == "exponential" and collapse_risk(n, p.tau):
            log(
                WARNING,
                "fedgkd.tau = %g times %d clients is above 5: everybody may get the"
                " model of the most central client; lower fedgkd.tau",
                p.tau,
                n,
            )
        if n > 2 and largest > n / 2:
            log(
                WARNING,
                "round %d: client %d makes up %.0f %% of all averages; lower"
                " fedgkd.tau or fedgkd.tau-s",
                server_round,
                int(q.sum(axis=0).argmax()),
                100 * largest / n,
            )

    @override
    def state(self) -> tuple[NamedArrays, dict[str, Any]]:
        """Return the models and, with static distillation, the features."""
        arrays, facts = super().state()
        kept = {str(c): m for c, m in self.kept.items()}
        return {**arrays, **with_prefix(_KEPT, kept)}, facts

    @override
    def restore(self, arrays: NamedArrays, facts: Mapping[str, Any]) -> None:
        super().restore(arrays, facts)
        self.kept = {int(c): m for c, m in select(_KEPT, arrays).items()}  # type: ignore[misc]
