"""Client side of FED-PUB: a masked GCN, and its output on a common random graph.

Baek et al. 2023, arXiv:2206.10206; as a baseline of FedGKD.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.core.wire import Parcel, join
from fedgraph_flwr.methods.fedpub import EMBEDDING, FedPubParams

from .graphs.whole_graph import DenseGraph
from .tasks.masked_nodes import MaskedNodeClient

NUM_BLOCKS, BLOCK_SIZE, EDGE_SHARE = 5, 100, 0.1


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
class FedPubClient(MaskedNodeClient[FedPubParams]):
    """Weights and masks are trained together; masks stay here."""

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
