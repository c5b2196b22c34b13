"""InfoGraph: graph embeddings that agree with those of their nodes.

Sun, Hoffmann, Verma, Tang 2020, arXiv:1908.01000; code ``unsupervised/`` of
``fanyun-sun/InfoGraph``, without its optional prior term.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.ops import linear, sum_neighbours, sum_pool


class BatchNorm(nn.Module):
    """Normalise columns by the batch's mean and variance, or by their running means.

    A batch of a single row has no variance: it is normalised by the running values,
    in training too, and leaves them as they are.

    Differs from ``torch.nn.BatchNorm1d``: the mode is an argument, and no batches are
    counted, so that every tensor of the state can be averaged. A running variance below
    0, as a mean of noisy updates may have, says nothing: it is read as 1, its start.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    @override
    def forward(self, x: Tensor, training: bool) -> Tensor:
        """(n, width) -> the same; moves the running values iff ``training``."""
        by_batch, variance = training and len(x) > 1, self.running_var
        if not by_batch:
            variance = torch.where(variance < 0, torch.ones_like(variance), variance)
        return functional.batch_norm(
            x, self.running_mean, variance, self.weight, self.bias, by_batch
        )


class GINLayer(nn.Module):
    """h_v <- BatchNorm(relu(MLP(h_v + sum of h_u over neighbours u)))."""

    def __init__(
        self, num_in: int, hidden_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.inner = linear(num_in, hidden_dim, generator)
        self.outer = linear(hidden_dim, hidden_dim, generator)
        self.norm = BatchNorm(hidden_dim)

    @override
    def forward(self, x: Tensor, adjacency: Tensor, training: bool) -> Tensor:
        """(num_nodes, num_in), or column numbers, -> (num_nodes, hidden)."""
        # W (x + A x) = W x + A W x: one-hot rows are never written out.
        weight = self.inner.weight.t()
        x = functional.embedding(x, weight) if x.dim() == 1 else x @ weight
        x = torch.relu(x + sum_neighbours(x, adjacency) + self.inner.bias)
        return self.norm(torch.relu(self.outer(x)), training)  # type: ignore[no-any-return]


class ProjectionNetwork(nn.Module):
    """Three linear layers, an activation after each, plus a linear shortcut.

    ``activation`` makes an activation module, once per layer.
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        activation: Callable[[], nn.Module],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.block = nn.Sequential(
            linear(num_in, num_out, generator),
            activation(),
            linear(num_out, num_out, generator),
            activation(),
            linear(num_out, num_out, generator),
            activation(),
        )
        self.shortcut = linear(num_in, num_out, generator)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """(n, num_in) -> (n, num_out)."""
        return self.block(x) + self.shortcut(x)  # type: ignore[no-any-return]


class InfoGraph(nn.Module):
    """GIN encoder, and the projections of nodes and graphs that its loss compares.

    Parameters
    ----------
    hidden_dim, num_layers : int
        Embeddings have ``num_layers * hidden_dim`` columns: all layers side by side.
    generator : torch.Generator
        Differs: initialises linear layers as torch does, the authors' are Xavier's.
    """

    def __init__(
        self,
        num_features: int,
        *,
        hidden_dim: int = 32,
        num_layers: int = 5,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        widths = [num_features] + [hidden_dim] * (num_layers - 1)
        self.layers = nn.ModuleList(GINLayer(w, hidden_dim, generator) for w in widths)
        width = num_layers * hidden_dim
        self.node_projection = ProjectionNetwork(width, width, nn.ReLU, generator)
        self.graph_projection = ProjectionNetwork(width, width, nn.ReLU, generator)

    def embed(self, batch: Batch) -> Tensor:
        """Sum of node embeddings per graph: (num_graphs, num_layers * hidden).

        Uses the running values of BatchNorm in either mode of the module, so that a
        graph's embedding does not depend on its batch.
        """
        return self._pool(self._encode(batch, training=False), batch)

    def project(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Projected nodes and graphs, which the loss compares.

        BatchNorm uses the batch's own statistics iff the module is in training mode.

        Returns
        -------
        nodes, graphs : tensors, shapes (num_nodes, d) and (num_graphs, d)
            d = ``num_layers * hidden_dim``.
        """
        nodes = self._encode(batch, training=self.training)
        graphs = self._pool(nodes, batch)
        return self.node_projection(nodes), self.graph_projection(graphs)

    def _encode(self, batch: Batch, *, training: bool) -> Tensor:
        x, outputs = batch.x, []
        for layer in self.layers:
            x = layer(x, batch.adjacency, training)
            outputs.append(x)
        return torch.cat(outputs, 1)  # (num_nodes, num_layers * hidden)

    @staticmethod
    def _pool(nodes: Tensor, batch: Batch) -> Tensor:
        return sum_pool(nodes, batch.membership, batch.graph_of_node)
