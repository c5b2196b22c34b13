"""Graph isomorphism network (Xu et al. 2019) with its fast pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.ops import (
    BareLinear,
    linear,
    project,
    relu_dropout,
    sum_neighbours,
    sum_pool,
)
from . import gin_pass


class GINConv(nn.Module):
    """h_v <- MLP(h_v + sum of h_u over neighbours u), i.e. epsilon = 0, fixed."""

    def __init__(self, hidden_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            linear(hidden_dim, hidden_dim, generator),
            nn.ReLU(inplace=True),
            linear(hidden_dim, hidden_dim, generator),
        )

    @override
    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """(num_nodes, hidden) -> (num_nodes, hidden)."""
        return self.mlp(x + sum_neighbours(x, adjacency))  # type: ignore[no-any-return]


def _are_plain(parts: Sequence[nn.Module]) -> bool:
    """Whether layers are those that :class:`GINConv` makes, for ``gin_pass``."""
    kinds = [type(part) for part in parts]
    num_layers = len(parts) // 3
    return kinds == [BareLinear, nn.ReLU, BareLinear] * num_layers + [BareLinear]


class GIN(nn.Module):
    """Graph classifier: pre -> GIN layers -> sum pooling -> post -> readout.

    Parameters
    ----------
    num_features, num_classes : int
        Widths of this client's data; may differ between clients.
    dropout : float
        After each layer and after ``post``, while training.
    shared_generator, private_generator : torch.Generator
        Initialise ``convs`` and the rest; two, so that the shared start is the same
        whatever the private widths are.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        shared_generator: torch.Generator,
        private_generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.pre = linear(num_features, hidden_dim, private_generator)
        self.convs = nn.ModuleList(
            GINConv(hidden_dim, shared_generator) for _ in range(num_layers)
        )
        self.post = linear(hidden_dim, hidden_dim, private_generator)
        self.readout = linear(hidden_dim, num_classes, private_generator)

    def represent(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """(num_graphs, hidden), the input of ``readout``; dropout iff a generator."""
        x = project(batch.x, self.pre)  # (num_nodes, hidden)
        parts = [m for conv in self.convs for m in conv.children()]
        parts = [*(m for mlp in parts for m in mlp.children()), self.post]
        is_plain = all(type(c) is GINConv for c in self.convs) and _are_plain(parts)
        is_plain &= isinstance(batch.adjacency, torch.Tensor)  # and not masked
        if is_plain and not self.post._forward_hooks:
            weights = [t for part in parts for t in part.parameters()]
            return gin_pass.represent(x, batch, weights, self.dropout, generator)
        for conv in self.convs:
            x = relu_dropout(conv(x, batch.adjacency), self.dropout, generator)
        g = sum_pool(x, batch.membership, batch.graph_of_node)  # (num_graphs, hidden)
        return relu_dropout(self.post(g), self.dropout, generator)

    @override
    def forward(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """Logits, shape (num_graphs, num_classes); dropout iff a generator is given."""
        return self.readout(self.represent(batch, generator))  # type: ignore[no-any-return]
