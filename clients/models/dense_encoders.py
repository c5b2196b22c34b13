"""Graph classifiers whose encoders take edge weights: FGCL's four, GIN and GAT.

Yang et al. 2022 (FGCL), Sec. IV-B; our spec, Sec. 2.2. An encoder runs on any
:class:`~clients.propagation.Structure`, a dense noisy view or a sparse clean graph,
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

from fedgraph_flwr.errors import ConfigError, unknown_name

from ..dense import DistinctRows, Nodes
from ..ops import linear, relu_dropout, sum_pool
from ..propagation import Structure

TAG_HOPS = 3
LIGHT_LAYERS = 2


def _uniform(num_in: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Parameter uniform in +-1/sqrt(num_in), as ``ops.linear`` (PyG's is Glorot)."""
    bound = num_in**-0.5
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))


def _times(x: Tensor | DistinctRows, weight: Tensor) -> Tensor:
    """``x @ weight.T``, x given as rows or as one-hot column numbers."""
    if isinstance(x, DistinctRows):
        return nn.functional.embedding(x.ids, x.table @ weight.t())
    return nn.functional.embedding(x, weight.t()) if x.dim() == 1 else x @ weight.t()


def _power(degree: Tensor, exponent: float) -> Tensor:
    """``degree ** exponent`` as a column; 0 where the degree is <= 0."""
    safe = torch.where(degree > 0, degree, 1.0)
    return torch.where(degree > 0, safe**exponent, 0.0)[:, None]  # (num_nodes, 1)


class GCNLayer(nn.Module):
    """D^-1/2 (W + I) D^-1/2 X Theta + b, d_v = 1 + sum_u w_uv: PyG's ``GCNConv``."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _uniform(num_in, (num_out, num_in), generator)
        self.bias = _uniform(num_in, (num_out,), generator)

    def forward(self, x: Tensor | DistinctRows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        root = _power(1.0 + structure.degree, -0.5)
        h = root * _times(x, self.weight)
        return root * (structure.sum(h) + h) + self.bias


class KGNNLayer(nn.Module):
    """Theta_1 x_v + Theta_2 sum_u w_uv x_u / d_v + b: ``GraphConv``, weighted mean.

    Differs from ``GraphConv(aggr="mean")``, which divides by the number of neighbours:
    p - 1 in a noisy graph of p nodes, however small its weights (spec Sec. 7.3). They
    agree where all weights are 1.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.root = _uniform(num_in, (num_out, num_in), generator)
        self.weight = _uniform(num_in, (num_out, num_in), generator)
        self.bias = _uniform(num_in, (num_out,), generator)

    def forward(self, x: Tensor | DistinctRows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        total = structure.sum(_times(x, self.weight))
        mean = _power(structure.degree, -1.0) * total
        return _times(x, self.root) + mean + self.bias


class TAGLayer(nn.Module):
    """sum_k S^k X Theta_k + b, k = 0..3, S = D^-1/2 W D^-1/2: PyG's ``TAGConv``.

    Evaluated from the inside (Horner), which takes three products of the output width.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _uniform(num_in, (TAG_HOPS + 1, num_out, num_in), generator)
        self.bias = _uniform(num_in, (num_out,), generator)

    def forward(self, x: Tensor | DistinctRows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        root = _power(structure.degree, -0.5)
        h = _times(x, self.weight[TAG_HOPS])
        for k in reversed(range(TAG_HOPS)):
            h = root * structure.sum(root * h) + _times(x, self.weight[k])
        return h + self.bias


class GINLayer(nn.Module):
    """MLP(x_v + sum_u w_uv x_u), MLP = Linear, ReLU, Linear: a weighted ``GINConv``.

    The sum grows with the number of pairs: noise of a large graph drowns x_v.
    """

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(num_in, num_out, generator)
        self.second = linear(num_out, num_out, generator)

    def forward(self, x: Tensor | DistinctRows, structure: Structure) -> Tensor:
        """(num_nodes, num_in) or columns (num_nodes,) -> (num_nodes, num_out)."""
        h = _times(x, self.first.weight)  # linear: before the sum, whichever width
        z = h + structure.sum(h) + self.first.bias
        return self.second(torch.relu(z))  # type: ignore[no-any-return]


class GATLayer(nn.Module):
    """PyG's ``GATConv`` with one head; w multiplies attention, see ``attend``."""

    def __init__(self, num_in: int, num_out: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = _uniform(num_in, (num_out, num_in), generator)
        self.source = _uniform(num_out, (num_out,), generator)
        self.target = _uniform(num_out, (num_out,), generator)
        self.bias = _uniform(num_in, (num_out,), generator)

    def forward(self, x: Tensor | DistinctRows, structure: Structure) -> Tensor:
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
        h = _times(x, self.weight)
        return structure.attend(h, h @ self.source, h @ self.target) + self.bias


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

    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        generator: torch.Generator | None,
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

    def forward(
        self,
        x: Tensor | DistinctRows,
        structure: Structure,
        generator: torch.Generator | None,  # noqa: ARG002
    ) -> Tensor:
        """Node embeddings H, shape (num_nodes, hidden); nothing here is random."""
        root = _power(structure.degree, -0.5)
        h = _times(x, self.linear.weight) + self.linear.bias
        total = h
        for _ in range(LIGHT_LAYERS):
            h = root * structure.sum(root * h)
            total = total + h
        return total / (LIGHT_LAYERS + 1)


@final
class GraphModel(nn.Module):
    """Encoder, readout of FedGraphNN, linear head.

    ``r_v = ReLU(W_2 ReLU(W_1 [x_v || H_v] + b_1) + b_2)``, ``h_G = mean_v r_v``,
    ``logits = W_3 h_G + b_3``.

    Parameters
    ----------
    encoder : str
        One of ``ENCODERS``.
    num_features, num_tasks, hidden_dim : int
    dropout : float
        Between the encoder's layers while training; LightGCN has none.
    generator : torch.Generator
        Initialises all tensors, none of which depends on the client.

    Raises
    ------
    ConfigError
        Unknown encoder.
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
        super().__init__()
        if encoder not in ENCODERS:
            raise ConfigError(
                unknown_name("encoder", encoder, ENCODERS, "Set it in the run config.")
            )
        self.encoder: nn.Module
        if encoder in LAYERS:
            self.encoder = TwoLayers(
                LAYERS[encoder],
                num_features,
                hidden_dim,
                dropout=dropout,
                generator=generator,
            )
        else:
            self.encoder = LightGCN(num_features, hidden_dim, generator)
        self._num_features = num_features
        self.readout_in = linear(num_features + hidden_dim, hidden_dim, generator)
        self.readout_out = linear(hidden_dim, hidden_dim, generator)
        self.head = linear(hidden_dim, num_tasks, generator)

    def embed(
        self, nodes: Nodes, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """h_G of every graph, shape (num_graphs, hidden), entries >= 0."""
        h = self.encoder(nodes.x, structure, generator)  # (num_nodes, hidden)
        of_x, of_h = self.readout_in.weight.tensor_split([self._num_features], 1)
        z = torch.relu(_times(nodes.x, of_x) + h @ of_h.t() + self.readout_in.bias)
        r = torch.relu(self.readout_out(z))
        total = sum_pool(r, nodes.membership, nodes.graph_of_node)
        sizes = nodes.membership.crow_indices().diff()
        return total / sizes[:, None]

    def forward(
        self, nodes: Nodes, structure: Structure, generator: torch.Generator | None
    ) -> Tensor:
        """Logits, shape (num_graphs, num_tasks); dropout iff a generator is given."""
        return self.head(self.embed(nodes, structure, generator))  # type: ignore[no-any-return]
