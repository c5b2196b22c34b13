"""GCN and GraphSAGE for node classification: convolutions, then one last layer.

Kipf and Welling 2017, arXiv:1609.02907; Hamilton et al. 2017, arXiv:1706.02216. As in
PyTorch Geometric's ``GCNConv`` and ``SAGEConv`` (tested against both), on sparse
matrices: messages are never written out edge by edge.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.ops import SparseRows, linear, project_rows, relu_dropout, uniform
from ..graphs.whole_graph import NodeStructure, WholeGraph

Features = Tensor | SparseRows


class GCNConv(nn.Module):
    """x -> D^-1/2 (A + I) D^-1/2 x W^T + b; W from Glorot's uniform law, b = 0."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = (6 / (num_in + num_out)) ** 0.5
        weight = torch.empty(num_out, num_in).uniform_(
            -bound, bound, generator=generator
        )
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(num_out))

    @override
    def forward(self, x: Features, structure: NodeStructure) -> Tensor:
        """(num_nodes, num_in) -> (num_nodes, num_out)."""
        return structure.propagate(project_rows(x, self.weight)) + self.bias


class SAGEConv(nn.Module):
    """x -> mean over neighbours of x W_n^T + b, plus x W_r^T."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.neighbours = linear(num_in, num_out, generator)
        self.root = uniform(num_in, (num_out, num_in), generator)

    @override
    def forward(self, x: Features, structure: NodeStructure) -> Tensor:
        """(num_nodes, num_in) -> (num_nodes, num_out)."""
        mean = structure.mean(project_rows(x, self.neighbours.weight))
        return mean + self.neighbours.bias + project_rows(x, self.root)


class NodeGNN(nn.Module):
    """Convolutions with ReLU and dropout, then ``readout``.

    Parameters
    ----------
    dropout : float
        After each ReLU, while training.
    generator : torch.Generator
        Initialises every tensor, in the order of the layers.
    conv : callable
        ``GCNConv`` or ``SAGEConv``.
    ends_in_conv : bool
        ``readout`` is the last of ``num_layers`` convolutions, and not one more layer.
    """

    PARTS: ClassVar[int] = 1  # of what ``readout`` reads, each as wide as a layer

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        generator: torch.Generator,
        conv: Callable[[int, int, torch.Generator], nn.Module] = GCNConv,
        ends_in_conv: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        widths = [num_features, *[hidden_dim] * (num_layers - ends_in_conv)]
        self.convs = nn.ModuleList(
            conv(*pair, generator) for pair in itertools.pairwise(widths)
        )
        self.out_features = num_classes
        last = conv if ends_in_conv else linear
        self.readout: Any = last(self.PARTS * widths[-1], num_classes, generator)

    def convolve(
        self,
        x: Features,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(num_nodes, hidden): output of the last convolution, before its ReLU."""
        h = self.convs[0](x, structure)
        for conv in list(self.convs)[1:]:
            structure = structure.inner()
            h = relu_dropout(structure.rows(h), self.dropout, generator)
            h = conv(h, structure)
        return h  # type: ignore[no-any-return]

    def represent(self, x: Features, structure: NodeStructure) -> Tensor:
        """(num_nodes, hidden): node embeddings H, without dropout."""
        return torch.relu(self.convolve(x, structure))

    def logits(
        self,
        x: Features,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(num_nodes, num_classes) of any features and edges."""
        h = self.convolve(x, structure, generator)
        return self.read(relu_dropout(h, self.dropout, generator), structure)

    def read(self, h: Tensor, structure: NodeStructure) -> Tensor:
        """Logits from the last hidden layer, (num_nodes, hidden)."""
        if isinstance(self.readout, nn.Linear):
            return self.readout(h)  # type: ignore[no-any-return]
        for _ in self.convs:
            structure = structure.inner()
        return self.readout(structure.rows(h), structure)  # type: ignore[no-any-return]

    @override
    def forward(self, graph: WholeGraph, generator: torch.Generator | None) -> Tensor:
        """Logits, shape (num_nodes, num_classes); dropout iff a generator is given."""
        return self.logits(graph.features, graph, generator)
