"""FedStar's two channels for nodes: private features, shared structure."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.ops import linear, project_rows, relu_dropout
from ..graphs.whole_graph import NodeStructure
from .node_gnn import Features, GCNConv

STRUCTURE = ("embedding_s.", "convs_s.")  # beginnings of the names of shared tensors


@final
class StarGNN(nn.Module):
    """Features see the structure channel in every layer, but not the other way round.

    Parameters
    ----------
    num_features, num_encoding, num_classes, hidden_dim, num_layers : int
        ``num_encoding`` is the width of the structure encoding.
    dropout : float
        After each ReLU of the feature channel, while training.
    generator : torch.Generator

    Source
    ------
    Tan et al. 2023, arXiv:2211.13009 and the authors' ``lib/models.py``.
    Differs: for nodes there is no pooling, and both channels convolve with GCN.
    """

    def __init__(
        self,
        num_features: int,
        num_encoding: int,
        num_classes: int,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        h, layers = hidden_dim, range(num_layers)
        self.embedding_s = linear(num_encoding, h, generator)
        self.convs_s = nn.ModuleList(GCNConv(h, h, generator) for _ in layers)
        self.pre = linear(num_features, h, generator)
        self.convs = nn.ModuleList(GCNConv(2 * h, h, generator) for _ in layers)
        self.whole = linear(2 * h, h, generator)
        self.readout = linear(h, num_classes, generator)

    @override
    def forward(
        self,
        x: Features,
        encoding: Tensor,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Logits, shape (num_nodes, num_classes); dropout iff a generator is given.

        ``encoding`` has shape (num_nodes, num_encoding).
        """
        x = project_rows(x, self.pre.weight) + self.pre.bias
        s = self.embedding_s(encoding)
        for conv, conv_s in zip(self.convs, self.convs_s, strict=True):
            both = torch.cat([x, s], 1)  # (num_nodes, 2 * hidden)
            x = relu_dropout(conv(both, structure), self.dropout, generator)
            s = torch.tanh(conv_s(s, structure))
        return self.readout(self.whole(torch.cat([x, s], 1)))  # type: ignore[no-any-return]
