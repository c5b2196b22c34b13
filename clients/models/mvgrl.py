"""MVGRL: contrast of a graph's edges with its diffusion.

Hassani, Khasahmadi 2020, arXiv:2006.05582; code ``graph/train.py`` of
``kavehhassani/mvgrl``. Differs from that code, whose encoders never train as their
layers stand in a plain list, and whose sums and means include padding: here all
layers train, and nodes are those of the graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.csr import DiffusionView
from ..graphs.ops import sum_neighbours, sum_pool, weighted_sum
from .infograph import ProjectionNetwork

Propagate = Callable[[Tensor], Tensor]


class GCNLayer(nn.Module):
    """PReLU(propagate(x W) + b); one PReLU slope, b starts at 0."""

    def __init__(
        self, num_in: int, hidden_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_in, hidden_dim))
        nn.init.xavier_uniform_(self.weight, generator=generator)
        self.bias = nn.Parameter(torch.zeros(hidden_dim))
        self.act = nn.PReLU()

    @override
    def forward(self, x: Tensor, propagate: Propagate) -> Tensor:
        """(num_nodes, num_in), or column numbers, -> (num_nodes, hidden)."""
        one_hot = x.dim() == 1
        x = functional.embedding(x, self.weight) if one_hot else x @ self.weight
        return self.act(propagate(x) + self.bias)  # type: ignore[no-any-return]


class GCN(nn.Module):
    """GCN layers over one view."""

    def __init__(
        self,
        num_features: int,
        hidden_dim: int,
        num_layers: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(GCNLayer(w, hidden_dim, generator) for w in widths)

    @override
    def forward(self, batch: Batch, propagate: Propagate) -> tuple[Tensor, Tensor]:
        """Nodes (num_nodes, hidden), graphs (num_graphs, num_layers * hidden).

        Nodes are the last layer's; graphs sum their nodes, all layers side by side.
        """
        x, sums = batch.x, []
        for layer in self.layers:
            x = layer(x, propagate)
            sums.append(sum_pool(x, batch.membership, batch.graph_of_node))
        return x, torch.cat(sums, 1)


class MVGRL(nn.Module):
    """Two GCN encoders, one per view, and projections that both views share.

    Embeddings have ``hidden_dim`` columns.
    """

    def __init__(
        self,
        num_features: int,
        *,
        hidden_dim: int = 512,
        num_layers: int = 4,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.gcn1 = GCN(num_features, hidden_dim, num_layers, generator)
        self.gcn2 = GCN(num_features, hidden_dim, num_layers, generator)
        self.mlp1 = ProjectionNetwork(hidden_dim, hidden_dim, nn.PReLU, generator)
        self.mlp2 = ProjectionNetwork(
            num_layers * hidden_dim, hidden_dim, nn.PReLU, generator
        )

    def embed(self, batch: Batch, view: DiffusionView) -> Tensor:
        """Sum of both views' projected graphs: (num_graphs, hidden)."""
        (_, graphs1), (_, graphs2) = self._encode(batch, view)
        return self.mlp2(graphs1) + self.mlp2(graphs2)  # type: ignore[no-any-return]

    def project(
        self, batch: Batch, view: DiffusionView
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Projected nodes of each view with graphs of the other, as the loss compares.

        Returns
        -------
        (nodes, graphs), (nodes, graphs) : tensors
            Of shapes (num_nodes, hidden) and (num_graphs, hidden); first the nodes by
            the batch's own edges with the graphs by ``view``, then the reverse.
        """
        (nodes1, graphs1), (nodes2, graphs2) = self._encode(batch, view)
        return (
            (self.mlp1(nodes1), self.mlp2(graphs2)),
            (self.mlp1(nodes2), self.mlp2(graphs1)),
        )

    def _encode(
        self, batch: Batch, view: DiffusionView
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        one = self.gcn1(batch, normalised_sum(batch.adjacency))
        two = self.gcn2(batch, lambda x: weighted_sum(x, view))
        return one, two


def normalised_sum(adjacency: Tensor) -> Propagate:
    """Return x -> D^-1/2 (A + I) D^-1/2 x, with D the row sums of A + I.

    Scales nodes, not edges: no weights are built.
    """
    scale = (adjacency.crow_indices().diff() + 1).rsqrt().unsqueeze(1)

    def propagate(x: Tensor) -> Tensor:
        x = scale * x
        return scale * (x + sum_neighbours(x, adjacency))

    return propagate
