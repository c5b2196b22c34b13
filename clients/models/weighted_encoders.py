"""Graph classifiers whose encoders take edge weights: those of FGCL's Table III.

Yang et al. 2022 (FGCL), Sec. IV-B. An encoder runs on any
:class:`~clients.graphs.structure.Structure`, dense noisy views or sparse clean graphs,
with the same parameters. Below, w are its weights (0 on the diagonal), d its
degrees: sums of w, or of absolute values for signed weights. A node
with d <= 0 contributes and receives 0.

kGNN, TAG and LightGCN divide by the weights of a node's neighbours alone. As the noise
vanishes, an isolated node's mean stays a mean of its neighbours in the noise, however
small their weights (PyG's formulas do the same); post-processing "round" has no such
neighbours.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.node_rows import Rows
from ..graphs.ops import linear, relu_dropout, uniform
from ..graphs.structure import Structure, power
from .readout import ReadoutModel, times

TAG_HOPS = 3
LIGHT_LAYERS = 2


def _step(x: Tensor, structure: Structure) -> Tensor:
    """S x, S = D^-1/2 W D^-1/2."""
    root = power(structure.degree, -0.5)[:, None]  # (num_nodes, 1)
    return root * structure.sum(root * x)


class GCNLayer(nn.Module):
    """D^-1/2 (W + I) D^-1/2 X Theta + b, d_v = 1 + sum_u w_uv: PyG's ``GCNConv``."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform(num_in, (num_out, num_in), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(self, x: Rows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        return structure.smooth(times(x, self.weight)) + self.bias


class KGNNLayer(nn.Module):
    """Theta_1 x_v + Theta_2 sum_u w_uv x_u / d_v + b: ``GraphConv``, weighted mean.

    Differs from ``GraphConv(aggr="mean")``, which divides by the number of neighbours:
    p - 1 in a noisy graph of p nodes, however small its weights. They
    agree if all weights are 1.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.root = uniform(num_in, (num_out, num_in), generator)
        self.weight = uniform(num_in, (num_out, num_in), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(self, x: Rows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        return times(x, self.root, self.bias) + structure.mean(times(x, self.weight))


class TAGLayer(nn.Module):
    """sum_k S^k X Theta_k + b, k = 0..3, S = D^-1/2 W D^-1/2: PyG's ``TAGConv``.

    Evaluated from the inside (Horner), which takes three products of the output width.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform(num_in, (TAG_HOPS + 1, num_out, num_in), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(self, x: Rows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        h = times(x, self.weight[TAG_HOPS])
        for k in reversed(range(TAG_HOPS)):
            h = _step(h, structure) + times(x, self.weight[k])
        return h + self.bias


LAYERS: dict[str, type[nn.Module]] = {
    "gcn": GCNLayer,
    "kgnn": KGNNLayer,
    "tag": TAGLayer,
}
ENCODERS = (*LAYERS, "lightgcn")


class TwoLayers(nn.Module):
    """Layer, ReLU, dropout, layer."""

    def __init__(
        self,
        layer: type[nn.Module],
        num_features: int,
        hidden_dim: int,
        *,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.first = layer(num_features, hidden_dim, generator)
        self.second = layer(hidden_dim, hidden_dim, generator)

    @override
    def forward(
        self, x: Rows, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); dropout iff a generator."""
        h = relu_dropout(self.first(x, structure), self.dropout, generator)
        return self.second(h, structure)  # type: ignore[no-any-return]


class LightGCN(nn.Module):
    """Linear, then mean of S^0 .. S^2 of it, S = D^-1/2 W D^-1/2: PyG's ``LGConv``."""

    def __init__(
        self, num_features: int, hidden_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.linear = linear(num_features, hidden_dim, generator)

    @override
    def forward(
        self, x: Rows, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); nothing here is random."""
        total = h = times(x, self.linear.weight, self.linear.bias)
        for _ in range(LIGHT_LAYERS):
            h = _step(h, structure)
            total = total + h
        return total / (LIGHT_LAYERS + 1)


@final
class GraphModel(ReadoutModel):
    """Encoder on noisy or clean graphs, readout, head.

    Parameters
    ----------
    encoder : str
        One of ``ENCODERS``.
    dropout : float
        Between the encoder's layers while training; LightGCN has none.
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
        dropout: float = 0.3,
        generator: torch.Generator,
    ) -> None:
        made: nn.Module
        if encoder == "lightgcn":
            made = LightGCN(num_features, hidden_dim, generator)
        else:
            made = TwoLayers(
                LAYERS[encoder],
                num_features,
                hidden_dim,
                dropout=dropout,
                generator=generator,
            )
        super().__init__(
            made, num_features, num_tasks, hidden_dim=hidden_dim, generator=generator
        )
