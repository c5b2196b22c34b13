"""FCLG's encoder: GIN layers that take edge weights, concatenated and sum-pooled.

Li et al. 2024, Sec. 4. PyG's ``GINConv`` ignores edge weights; on a
dense diffusion graph it would add the same vector to every node.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.csr import DiffusionView
from ..graphs.ops import linear, sum_neighbours, sum_pool, weighted_sum

Sum = Callable[[Tensor], Tensor]


class WeightedGINConv(nn.Module):
    """H_v <- MLP(H_v + sum_u a_uv H_u), MLP = Linear, ReLU, Linear; epsilon = 0."""

    def __init__(self, num_in: int, hidden_dim: int, generator: torch.Generator):
        super().__init__()
        self.mlp = nn.Sequential(
            linear(num_in, hidden_dim, generator),
            nn.ReLU(),
            linear(hidden_dim, hidden_dim, generator),
        )

    @override
    def forward(self, x: Tensor, sum_of: Sum) -> Tensor:
        """(num_nodes, num_in) or one-hot columns (num_nodes,) -> (num_nodes, hidden).

        ``sum_of`` maps node rows to the weighted sums over their neighbours.
        """
        first = self.mlp[0]
        assert isinstance(first, nn.Linear)
        if x.dim() == 1:  # the layer is linear: sum its rows instead of one-hot rows
            rows = nn.functional.embedding(x, first.weight.t())
            z = rows + sum_of(rows) + first.bias
        else:
            z = first(x + sum_of(x))
        return self.mlp[2](self.mlp[1](z))  # type: ignore[no-any-return]


class WeightedGIN(nn.Module):
    """Encoder of graphs, without readout parameters."""

    def __init__(
        self,
        num_features: int,
        *,
        hidden_dim: int,
        num_layers: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        self.convs = nn.ModuleList(
            WeightedGINConv(width, hidden_dim, generator) for width in widths
        )

    def layers(self, batch: Batch, view: DiffusionView | None = None) -> list[Tensor]:
        """H^1 .. H^L, each (num_nodes, hidden), on the graph or on a weighted view."""

        def sum_of(rows: Tensor) -> Tensor:
            if view is None:
                return sum_neighbours(rows, batch.adjacency)
            return weighted_sum(rows, view)

        found: list[Tensor] = []
        x = batch.x
        for conv in self.convs:
            x = conv(x, sum_of)
            found.append(x)
        return found

    def pool(self, layers: list[Tensor], batch: Batch) -> Tensor:
        """U = [sum_v H^1_v, .., sum_v H^L_v], shape (num_graphs, L * hidden)."""
        return torch.cat(
            [sum_pool(h, batch.membership, batch.graph_of_node) for h in layers], dim=1
        )

    @override
    def forward(self, batch: Batch, view: DiffusionView | None = None) -> Tensor:
        """Embeddings of graphs, shape (num_graphs, L * hidden)."""
        return self.pool(self.layers(batch, view), batch)
