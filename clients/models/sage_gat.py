"""Encoders of SpreadGNN and FedGMTL: GraphSAGE and GAT.

He et al. 2021, arXiv:2106.02743, Sec. 8.1.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.node_rows import DistinctRows, Nodes, Rows
from ..graphs.ops import dropout_mask, relu_dropout, uniform
from ..graphs.structure import CleanStructure, Mask, OneGraph, Structure
from .readout import ReadoutModel, times

NUM_HEADS = 2


def as_rows(x: Rows, num_features: int, dtype: torch.dtype) -> Tensor:
    """Expand numbers of one-hot columns or of table rows to dense feature rows."""
    if isinstance(x, DistinctRows):
        return x.table[x.ids]
    return nn.functional.one_hot(x, num_features).to(dtype) if x.dim() == 1 else x


@final
class GraphSAGE(nn.Module):
    """ReLU(W [x_v || mean_u x_u]) in every layer, dropout between layers.

    PyG's ``SAGEConv(aggr="mean", bias=False)``; a node without neighbours has mean 0.

    Source
    ------
    He et al. 2021, Sec. 8.1. Differs: all neighbours instead of two drawn with
    replacement, so that a prediction is a function of the molecule.
    """

    def __init__(
        self,
        num_features: int,
        hidden_dim: int,
        *,
        num_layers: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        self._num_features = num_features
        self.weight = nn.ParameterList(
            uniform(2 * n, (hidden_dim, 2 * n), generator) for n in widths
        )

    @override
    def forward(
        self, x: Rows, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); dropout iff a generator."""
        last = len(self.weight) - 1
        if isinstance(structure, OneGraph):  # few operations count, not their size
            x = as_rows(x, self._num_features, self.weight[0].dtype)
        for k, weight in enumerate(self.weight):
            if isinstance(structure, OneGraph):
                assert isinstance(x, Tensor)
                h = nn.functional.linear(torch.cat([x, structure.mean(x)], 1), weight)
            else:  # the mean of what is projected: fewer columns, and rows if alike
                of_own, of_mean = weight.tensor_split(2, 1)
                h = times(x, of_own) + structure.mean(times(x, of_mean))
            x = relu_dropout(h, self.dropout, generator if k < last else None)
        assert isinstance(x, Tensor)
        return x


class GATLayer(nn.Module):
    """PyG's ``GATConv`` with heads side by side, loops at all nodes, then ELU.

    Parameters
    ----------
    num_in, num_out : int
        Widths; ``num_out`` of one head.
    dropout : float
        Of the inputs and of the attention, while training.
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        *,
        num_heads: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout, self.num_heads = dropout, num_heads
        self._num_in = num_in
        self.weight = uniform(num_in, (num_heads * num_out, num_in), generator)
        self.source = uniform(num_out, (num_heads, num_out), generator)
        self.target = uniform(num_out, (num_heads, num_out), generator)
        self.bias = uniform(num_in, (num_heads * num_out,), generator)

    @override
    def forward(
        self, x: Rows, structure: CleanStructure, generator: torch.Generator | None
    ) -> Tensor:
        """Features or one-hot columns of nodes -> (num_nodes, num_heads * num_out)."""
        mask: Mask | None = None
        if generator is not None and self.dropout:
            draws = generator

            def mask(values: Tensor) -> Tensor:
                return values * dropout_mask(values, self.dropout, draws)[0]

            x = mask(as_rows(x, self._num_in, self.weight.dtype))
        h = times(x, self.weight).view(len(x), self.num_heads, -1)
        source, target = (h * self.source).sum(2), (h * self.target).sum(2)
        found = structure.attend_by_heads(h, source, target, mask)
        return nn.functional.elu(found + self.bias)


@final
class GAT(nn.Module):
    """Layers of two heads, concatenated; the last of one.

    Source
    ------
    He et al. 2021, Sec. 8.1. Differs: loops are always there, and attention is
    over edges and not over all pairs of a dense matrix.
    """

    def __init__(
        self,
        num_features: int,
        hidden_dim: int,
        *,
        num_layers: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        heads = [NUM_HEADS] * (num_layers - 1) + [1]
        widths = [num_features] + [NUM_HEADS * hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(
            GATLayer(
                num_in,
                hidden_dim,
                num_heads=num_heads,
                dropout=dropout,
                generator=generator,
            )
            for num_in, num_heads in zip(widths, heads, strict=True)
        )

    @override
    def forward(
        self, x: Rows, structure: CleanStructure, generator: torch.Generator | None
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); dropout iff a generator."""
        for layer in self.layers:
            x = layer(x, structure, generator)
        assert isinstance(x, Tensor)
        return x


ENCODERS: dict[str, type[GraphSAGE | GAT]] = {"sage": GraphSAGE, "gat": GAT}


@final
class MultiTaskGNN(ReadoutModel):
    """GraphSAGE or GAT, the readout, and a head with one row per task.

    Parameters
    ----------
    encoder : str
        One of ``ENCODERS``.
    generator : torch.Generator
        Initialises all tensors; no tensor depends on the client.
    """

    def __init__(
        self,
        encoder: str,
        num_features: int,
        num_tasks: int,
        *,
        hidden_dim: int = 64,
        num_layers: int = 2,
        dropout: float = 0.3,
        generator: torch.Generator,
    ) -> None:
        made = ENCODERS[encoder](
            num_features,
            hidden_dim,
            num_layers=num_layers,
            dropout=dropout,
            generator=generator,
        )
        super().__init__(
            made, num_features, num_tasks, hidden_dim=hidden_dim, generator=generator
        )

    @override
    def embed(
        self, nodes: Nodes, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """h_G of every graph; a graph alone takes fewer operations."""
        if not isinstance(structure, OneGraph):
            return super().embed(nodes, structure, generator)
        h = self.encoder(nodes.x, structure, generator)
        x = as_rows(nodes.x, self._num_features, h.dtype)
        z = torch.relu(self.readout_in(torch.cat([x, h], 1)))
        return torch.relu(self.readout_out(z)).mean(0, keepdim=True)
