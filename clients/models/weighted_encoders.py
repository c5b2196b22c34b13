"""Graph classifiers whose encoders take edge weights: FGCL's four, GIN and GAT.

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

from fedgraph_flwr.core.errors import ConfigError

from ..graphs.node_rows import DistinctRows, SpreadRows
from ..graphs.ops import linear, relu_dropout, uniform
from ..graphs.structure import Structure, power
from .readout import ReadoutModel, times

TAG_HOPS = 3
LIGHT_LAYERS = 2


# Ways of spreading features before there are weights, see SpreadRows ------------------


def _smooth(x: Tensor, structure: Structure) -> Tensor:
    """S x with loops, as a GCN layer does."""
    return structure.smooth(x)


def _mean(x: Tensor, structure: Structure) -> Tensor:
    """Weighted mean over a node's neighbours."""
    return structure.mean(x)


def _with_own(x: Tensor, structure: Structure) -> Tensor:
    """Add a node's own features and those of its neighbours."""
    return x + structure.sum(x)


def _hops(x: Tensor, structure: Structure) -> Tensor:
    """S x, S^2 x, S^3 x side by side."""
    found = [x]
    for _ in range(TAG_HOPS):
        found.append(_step(found[-1], structure))
    return torch.cat(found[1:], 1)


def _light(x: Tensor, structure: Structure) -> Tensor:
    """Mean of x, S x, S^2 x."""
    total = h = x
    for _ in range(LIGHT_LAYERS):
        h = _step(h, structure)
        total = total + h
    return total / (LIGHT_LAYERS + 1)


def _step(x: Tensor, structure: Structure) -> Tensor:
    """S x, S = D^-1/2 W D^-1/2."""
    root = power(structure.degree, -0.5)[:, None]  # (num_nodes, 1)
    return root * structure.sum(root * x)


def _through(then: Tensor | None, *last: Tensor) -> tuple[Tensor, ...]:
    """Multiply a layer's tensors, (..., num_out, num_in) or (num_out,), by ``then``.

    What is linear after a layer is cheaper with its weights than with all nodes.
    """
    return last if then is None else tuple(then @ tensor for tensor in last)


# Layers -------------------------------------------------------------------------------


class GCNLayer(nn.Module):
    """D^-1/2 (W + I) D^-1/2 X Theta + b, d_v = 1 + sum_u w_uv: PyG's ``GCNConv``."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform(num_in, (num_out, num_in), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        then: Tensor | None = None,
    ) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        weight, bias = _through(then, self.weight, self.bias)
        if isinstance(x, SpreadRows):
            return torch.addmm(bias, x.spread(_smooth), x.table @ weight.t())
        return _smooth(times(x, weight), structure) + bias


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
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        then: Tensor | None = None,
    ) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        root, weight, bias = _through(then, self.root, self.weight, self.bias)
        if isinstance(x, SpreadRows):
            mean = x.spread(_mean) @ (x.table @ weight.t())
        else:
            mean = _mean(times(x, weight), structure)
        return times(x, root, bias) + mean


class TAGLayer(nn.Module):
    """sum_k S^k X Theta_k + b, k = 0..3, S = D^-1/2 W D^-1/2: PyG's ``TAGConv``.

    Evaluated from the inside (Horner), which takes three products of the output width.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform(num_in, (TAG_HOPS + 1, num_out, num_in), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        then: Tensor | None = None,
    ) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        weight, bias = _through(then, self.weight, self.bias)
        if isinstance(x, SpreadRows):
            by_hop = x.table @ weight[1:].transpose(1, 2)  # (3, distinct, num_out)
            hops = x.spread(_hops) @ by_hop.flatten(0, 1)
            return times(x, weight[0], bias) + hops
        h = times(x, weight[TAG_HOPS])
        for k in reversed(range(TAG_HOPS)):
            h = _step(h, structure) + times(x, weight[k])
        return h + bias


class GINLayer(nn.Module):
    """MLP(x_v + sum_u w_uv x_u), MLP = Linear, ReLU, Linear: a weighted ``GINConv``.

    The sum grows with the number of pairs: noise of a large graph drowns x_v.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(num_in, num_out, generator)
        self.second = linear(num_out, num_out, generator)

    @override
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        then: Tensor | None = None,
    ) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        if isinstance(x, SpreadRows):
            z = x.spread(_with_own) @ (x.table @ self.first.weight.t())
        else:  # linear: before the sum, whichever width
            z = _with_own(times(x, self.first.weight), structure)
        weight, bias = _through(then, self.second.weight, self.second.bias)
        z = torch.relu(z + self.first.bias)
        return nn.functional.linear(z, weight, bias)


class GATLayer(nn.Module):
    """PyG's ``GATConv`` with one head; w multiplies attention, see ``attend``."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = uniform(num_in, (num_out, num_in), generator)
        self.source = uniform(num_out, (num_out,), generator)
        self.target = uniform(num_out, (num_out,), generator)
        self.bias = uniform(num_in, (num_out,), generator)

    @override
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        then: Tensor | None = None,
    ) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out).

        Raises
        ------
        ConfigError
            Weights may be negative: they are no attention then.
        """
        if not structure.is_non_negative:
            raise ConfigError(
                "encoder gat needs edge weights >= 0, got weights that can be negative;"
                " use post-processing clamp01, round or relu, or another encoder"
            )
        h = times(x, self.weight)
        source, target = h @ self.source, h @ self.target
        if then is not None:
            h = h @ then.t()
        (bias,) = _through(then, self.bias)
        return structure.attend(h, source, target) + bias


LAYERS: dict[str, type[nn.Module]] = {
    "gcn": GCNLayer,
    "kgnn": KGNNLayer,
    "tag": TAGLayer,
    "gin": GINLayer,
    "gat": GATLayer,
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
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        generator: torch.Generator | None,
        then: Tensor | None = None,
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); dropout iff a generator.

        With ``then`` H @ then.T.
        """
        h = relu_dropout(self.first(x, structure), self.dropout, generator)
        return self.second(h, structure, then)  # type: ignore[no-any-return]


class LightGCN(nn.Module):
    """Linear, then mean of S^0 .. S^2 of it, S = D^-1/2 W D^-1/2: PyG's ``LGConv``."""

    def __init__(
        self, num_features: int, hidden_dim: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.linear = linear(num_features, hidden_dim, generator)

    @override
    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        generator: torch.Generator | None,
        then: Tensor | None = None,
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); nothing here is random.

        With ``then`` H @ then.T.
        """
        weight, bias = _through(then, self.linear.weight, self.linear.bias)
        if isinstance(x, SpreadRows):  # a one-hot row sums to 1, hence the bias inside
            return x.spread(_light) @ (x.table @ weight.t() + bias)
        return _light(times(x, weight, bias), structure)


@final
class GraphModel(ReadoutModel):
    """Encoder on noisy or clean graphs, readout, head.

    Parameters
    ----------
    encoder : str
        One of ``ENCODERS``.
    num_features, num_tasks, hidden_dim : int
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

    @override
    def encode(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        generator: torch.Generator | None,
        then: Tensor,
    ) -> Tensor:
        return self.encoder(x, structure, generator, then)  # type: ignore[no-any-return]
