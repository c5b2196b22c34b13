"""Client side of FedGKD: train close to the received average, then distil.

Pan et al. 2023, Sec. 5.2, Algorithms 1 and 2.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.errors import DataError, WireError
from fedgraph_flwr.core.seeding import derive_seed
from fedgraph_flwr.core.wire import NamedArrays, Parcel, join
from fedgraph_flwr.methods.fedgkd import (
    FEATURE_MAPS,
    FEATURES,
    NOISE_SEED,
    X0,
    Y0,
    FedGKDParams,
)

from .fedgkd_distillation import (
    Distilled,
    Recipe,
    distil,
    gumbel_noise,
    match_gradients,
)
from .mixins import Pulled
from .models.node_gnn import NodeGNN
from .tasks.node_classifier import NodeClassifierClient


@final
class FedGKDClient(Pulled[FedGKDParams], NodeClassifierClient[FedGKDParams]):
    """Proximal training on the whole graph; sends what it distils beside its model."""

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
        found = self._distil()
        columns = {"x": found.x, "h": found.h, "y": found.y}
        return {
            FEATURES + part: columns[part].cpu().numpy()
            for part in FEATURE_MAPS[self.params.feature_map]
        }

    def _distil(self) -> Distilled:
        p, device = self.params, self.job.device
        x0, y0, seed = self._start()
        noise = gumbel_noise(seed, p.distil_steps, len(y0)).to(device)
        recipe = Recipe(
            steps=p.distil_steps,
            scale=self._feature_std() if p.x0_scale == "data" else 1.0,
        )
        start = (x0.to(device), y0.to(device), noise, recipe)
        if p.distillation == "dynamic":
            return distil(self.model, *start)
        return match_gradients(self._random_starts(seed), self._as_received(), *start)

    def _start(self) -> tuple[Tensor, Tensor, int]:
        """Read the common start: X0, y0, and the seed of the noise.

        Raises
        ------
        WireError
            The server sent what nobody can distil from.
        """
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

    def _feature_std(self) -> float:
        """Measure the standard deviation over all entries of the features."""
        graphs = self.data.partition.graphs
        if graphs.x.ndim == 1:  # columns of ones
            std = float(np.sqrt(graphs.num_features - 1)) / graphs.num_features
        else:
            std = float(graphs.x.astype(np.float64).std())
        if not std > 0:
            raise DataError(
                f"features of client {self.job.client_id} are all the same, so"
                " fedgkd.x0-scale = 'data' has no scale; set it to 'unit'"
            )
        return std

    # Static distillation: from what was there before training -------------------------

    def _as_received(self) -> NodeGNN:
        model = copy.deepcopy(self.model)
        named = model.state_dict()
        for name, tensor in self.round.received.items():
            named[name].copy_(tensor)
        return model

    def _random_starts(self, seed: int) -> Iterator[tuple[NodeGNN, list[Tensor]]]:
        """Untrained models, the same for all clients, and their gradients here."""
        graph, settings = self.graph, self.job.settings
        for step in range(self.params.distil_steps):
            generator = torch.Generator().manual_seed(derive_seed(seed, step, "start"))
            model = NodeGNN(
                self.data.partition.graphs.num_features,
                self.model.readout.out_features,
                hidden_dim=settings.hidden_dim,
                num_layers=settings.num_layers,
                dropout=0.0,
                generator=generator,
            ).to(self.job.device)
            weights = list(model.parameters())
            if not len(graph.train):
                yield model, [torch.zeros_like(w) for w in weights]
                continue
            logits = model(graph, None)[graph.train]
            loss = nn.functional.cross_entropy(logits, graph.y[graph.train])
            yield model, list(torch.autograd.grad(loss, weights))


def _holds_integers(array: NDArray[Any], bound: int = 1 << 63) -> bool:
    """Whether a received array is a vector of int64 from 0 to below a bound."""
    is_vector = array.dtype == np.int64 and array.ndim == 1 and array.size > 0
    return is_vector and bool(((array >= 0) & (array < bound)).all())
