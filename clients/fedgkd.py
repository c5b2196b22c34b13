"""Client side of FedGKD: train close to the received average, then distil.

Pan et al. 2023, Sec. 5.2, Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import NamedArrays, Parcel, join
from fedgraph_flwr.methods.fedgkd import (
    FEATURE_MAPS,
    FEATURES,
    NOISE_SEED,
    X0,
    Y0,
    FedGKDParams,
)

from .fedgkd_distillation import Recipe, distil, gumbel_noise
from .mixins import Pulled
from .models.node_gnn import NodeGNN
from .tasks.node_classifier import NodeClassifierClient


@final
class FedGKDClient(Pulled[FedGKDParams], NodeClassifierClient[FedGKDParams]):
    """Proximal training on the whole graph; sends what it distils beside its model."""

    TAKES_ENCODER = False
    model: NodeGNN

    @override
    def pull_weight(self) -> float:
        """Lambda of Algorithm 1."""
        return self.params.proximal_lambda

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Send the trained tensors, and the task features."""
        return join(super().update(trained), Parcel(arrays=self.features()))

    def features(self) -> NamedArrays:
        """Task features M_i, if the server sent something to distil from."""
        if X0 not in self.round.extras:
            return {}
        steps, device = self.params.distil_steps, self.job.device
        x0, y0, seed = self._start()
        noise = gumbel_noise(seed, steps, len(y0)).to(device)
        start = (x0.to(device), y0.to(device), noise)
        found = distil(self.model, *start, Recipe(steps=steps))
        columns = {"x": found.x, "h": found.h, "y": found.y}
        return {
            FEATURES + part: columns[part].cpu().numpy()
            for part in FEATURE_MAPS[self.params.feature_map]
        }

    def _start(self) -> tuple[Tensor, Tensor, int]:
        """Read the common start: X0, y0, and the seed of the noise."""
        x0, y0, seed = (
            np.asarray(self.round.extras.get(n, ())) for n in (X0, Y0, NOISE_SEED)
        )
        graphs, who = self.data.partition.graphs, f"client {self.job.client_id}"
        if not (_holds_integers(y0, graphs.num_classes) and _holds_integers(seed)):
            raise WireError(
                f"{who} received classes ({y0.dtype} of shape {y0.shape}) and a seed"
                f" ({seed.dtype} of shape {seed.shape}) to distil from; both must be"
                f" int64, classes from 0 to {graphs.num_classes - 1}"
            )
        if x0.shape != (len(y0), graphs.num_features) or x0.dtype.kind != "f":
            raise WireError(
                f"{who} received features to distil from of shape {x0.shape}, its own"
                f" have {graphs.num_features} columns; all clients must have the same"
                " features"
            )
        return torch.tensor(x0), torch.tensor(y0), int(seed[0])


def _holds_integers(array: NDArray[Any], bound: int = 1 << 63) -> bool:
    """Whether a received array is a vector of int64 from 0 to below a bound."""
    is_vector = array.dtype == np.int64 and array.ndim == 1 and array.size > 0
    return is_vector and bool(((array >= 0) & (array < bound)).all())
