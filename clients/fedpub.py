"""Client side of FED-PUB: a masked GCN, and its output on a common random graph.

Baek et al. 2023, arXiv:2206.10206; as a baseline of FedGKD.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import Parcel, join
from fedgraph_flwr.methods.fedpub import EMBEDDING, MASK_WEIGHT, FedPubParams

from .graphs.ops import project_rows, relu_dropout
from .graphs.whole_graph import DenseGraph, NodeStructure
from .job import ModelSpec
from .models.node_gnn import Features, GCNConv, NodeGNN
from .tasks.node_classifier import NodeClassifierClient

NUM_BLOCKS, BLOCK_SIZE, EDGE_SHARE = 5, 100, 0.1
_MASKS = "masks."


@lru_cache(maxsize=4)
def proxy_graph(seed: int, num_features: int) -> tuple[Tensor, Tensor]:
    """Features (500, num_features) and adjacency (500, 500) of a random graph.

    All clients have it in common, as the same seed gives the same: blocks of nodes
    without edges between them, an edge within a block with probability 0.1, standard
    normal features.

    Source
    ------
    Baek et al. 2023 and the authors' ``models/fedpub/server.py``.
    """
    rng = numpy_rng(seed, "common", "proxy")
    num_nodes = NUM_BLOCKS * BLOCK_SIZE
    block = np.arange(num_nodes) // BLOCK_SIZE
    drawn = rng.random((num_nodes, num_nodes)) < EDGE_SHARE
    upper = np.triu(drawn & (block[:, None] == block), 1)
    adjacency = torch.from_numpy((upper | upper.T).astype(np.float32))
    x = rng.standard_normal((num_nodes, num_features), np.float32)
    return torch.from_numpy(x), adjacency


@final
class MaskedGNN(NodeGNN):
    """``NodeGNN`` with W * mask in the place of each weight matrix W.

    Parameters
    ----------
    *args, **kwargs
        As of ``NodeGNN``.
    threshold : float
        While evaluating, smaller entries of a mask count as 0.

    Source
    ------
    Baek et al. 2023; masks start at 1 as in the authors' scripts.
    """

    def __init__(self, *args: Any, threshold: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.threshold = threshold
        matrices = [w for w in self.parameters() if w.dim() == 2]
        self.masks = nn.ParameterList(torch.ones_like(w) for w in matrices)

    def masked(self, weight: Tensor, layer: int) -> Tensor:
        """Weight matrix of a layer times its mask; layer -1 is the readout."""
        mask: Tensor = self.masks[layer]
        if not self.training:
            mask = mask.masked_fill(mask.abs() < self.threshold, 0)
        return weight * mask

    @override
    def convolve(
        self,
        x: Features,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        h: Features = x
        for layer, conv in enumerate(self.convs):
            assert isinstance(conv, GCNConv)
            if layer:
                assert isinstance(h, Tensor)
                h = relu_dropout(h, self.dropout, generator)
            weight = self.masked(conv.weight, layer)
            h = structure.propagate(project_rows(h, weight)) + conv.bias
        assert isinstance(h, Tensor)
        return h

    @override
    def logits(
        self,
        x: Features,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        h = self.convolve(x, structure, generator)
        h = relu_dropout(h, self.dropout, generator)
        weight = self.masked(self.readout.weight, -1)
        return nn.functional.linear(h, weight, self.readout.bias)


@final
class FedPubClient(NodeClassifierClient[FedPubParams]):
    """Weights and masks are trained together; masks stay here."""

    model: MaskedGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[FedPubParams]) -> MaskedGNN:
        return MaskedGNN(
            spec.num_features,
            spec.num_classes,
            **spec.shape(),
            generator=spec.common_generator(),
            threshold=MASK_WEIGHT,
        )

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        shared = super().shared_names(model, settings)
        return [n for n in shared if not n.startswith(_MASKS)]

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Send the trained tensors, and an embedding by which clients are compared."""
        embedding = Parcel(arrays={EMBEDDING: self.embedding()})
        return join(super().update(trained), embedding)

    @torch.no_grad()
    def embedding(self) -> NDArray[np.float32]:
        """Mean over the random graph's nodes of the last convolution, before ReLU."""
        num_features = self.data.partition.graphs.num_features
        x, adjacency = (
            t.to(self.job.device)
            for t in proxy_graph(self.job.settings.seed, num_features)
        )
        found = self.model.eval().convolve(x, DenseGraph(adjacency)).mean(0)
        mean: NDArray[np.float32] = found.cpu().numpy()
        return mean
