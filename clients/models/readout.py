"""Readout of FedGraphNN: what comes between node embeddings and predictions.

FGCL and SpreadGNN both have it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.node_rows import DistinctRows, Nodes, Rows
from ..graphs.ops import linear, sum_pool
from ..graphs.structure import Structure


def times(x: Rows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, x given as rows or as one-hot column numbers."""
    if isinstance(x, DistinctRows):
        table = nn.functional.linear(x.table, weight, bias)
        return nn.functional.embedding(x.ids, table)
    if x.dim() == 1:
        columns = weight.t() if bias is None else weight.t() + bias
        return nn.functional.embedding(x, columns)
    return nn.functional.linear(x, weight, bias)


class ReadoutModel(nn.Module):
    """Encoder, readout of FedGraphNN, linear head.

    ``r_v = ReLU(W_2 ReLU(W_1 [x_v || H_v] + b_1) + b_2)``, ``h_G = mean_v r_v``,
    ``logits = W_3 h_G + b_3``.

    Parameters
    ----------
    encoder : module
        Takes features, structure and generator; gives H, (num_nodes, hidden).
    generator : torch.Generator
        Initialises readout and head.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_features: int,
        num_tasks: int,
        *,
        hidden_dim: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self._num_features = num_features
        self.readout_in = linear(num_features + hidden_dim, hidden_dim, generator)
        self.readout_out = linear(hidden_dim, hidden_dim, generator)
        self.head = linear(hidden_dim, num_tasks, generator)

    def embed(
        self, nodes: Nodes, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """h_G of every graph, shape (num_graphs, hidden), entries >= 0."""
        of_x, of_h = self.readout_in.weight.tensor_split([self._num_features], 1)
        own = times(nodes.x, of_x, self.readout_in.bias)  # (num_nodes, hidden)
        h = self.encoder(nodes.x, structure, generator)
        z = torch.relu(own + h @ of_h.t())
        r = torch.relu(self.readout_out(z))
        total = sum_pool(r, nodes.membership, nodes.graph_of_node)
        sizes = nodes.membership.crow_indices().diff()
        return total / sizes[:, None]

    @override
    def forward(
        self, nodes: Nodes, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """Logits, shape (num_graphs, num_tasks); dropout iff a generator is given."""
        return self.head(self.embed(nodes, structure, generator))  # type: ignore[no-any-return]
