"""Networks of AdaFGL: the averaged model, and a client's own branches beside it.

Li et al. 2024, arXiv:2401.11750; formulas of the authors' released code.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, prelu
from typing_extensions import override

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.methods.adafgl import MOST_NODES

from ..graphs.ops import dense_rows, dropout_mask, linear
from ..graphs.whole_graph import DenseGraph, WholeGraph
from .node_gnn import NodeGNN

UNTRAINED = -1.0  # share of the homophilous branch if there is no branch to share with


class Perceptron(nn.Module):
    """Linear layers with PReLU and dropout between them.

    Weights from Xavier's uniform law with gain sqrt(2), biases 0.
    """

    def __init__(self, widths: list[int], dropout: float, g: torch.Generator) -> None:
        super().__init__()
        self.dropout = dropout
        pairs = pairwise(widths)
        self.layers = nn.ModuleList(linear(a, b, g) for a, b in pairs)
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight, 2**0.5, generator=g)
            nn.init.zeros_(layer.bias)

    @override
    def forward(
        self, x: Tensor, slope: Tensor, noise: torch.Generator | None
    ) -> Tensor:
        """(num_nodes, first width) -> (num_nodes, last); dropout iff ``noise``."""
        *hidden, last = self.layers
        for layer in hidden:
            x = prelu(layer(x), slope)
            if noise is not None and self.dropout:
                x = x * dropout_mask(x, self.dropout, noise)[0]
        return last(x)  # type: ignore[no-any-return]


class Corrected(NamedTuple):
    """What branches read of a client's graph; all are constants.

    Parameters
    ----------
    x : float tensor, shape (num_nodes, num_features)
    smooth : float tensor, shape (num_nodes, (hops + 1) * num_features)
    links : float tensor, shape (num_nodes, num_nodes)
        S, 0 or 1.
    """

    x: Tensor
    smooth: Tensor
    links: Tensor


class Outputs(NamedTuple):
    """Logits of each network, (num_nodes, num_classes)."""

    homo: Tensor
    plain: Tensor  # Z_o
    smooth: Tensor  # Z_s
    spread: Tensor  # Z_p


def check_size(num_nodes: int) -> None:
    """Raise DataError if a graph is too large for dense matrices of its pairs."""
    if num_nodes > MOST_NODES:
        raise DataError(
            f"the graph has {num_nodes} nodes, adafgl takes at most {MOST_NODES}"
            " per client, as it compares all pairs; use more clients, or cut it"
        )


def predicted_links(knowledge: Tensor, least: float) -> Tensor:
    """S: 1 where cosines of rows of softmax(P) are above ``least``; diagonal 0."""
    rows = nn.functional.normalize(torch.softmax(knowledge.double(), 1), dim=1)
    links = (rows @ rows.t() > least).to(knowledge.dtype)
    return links.fill_diagonal_(0)


def smoothed(x: Tensor, weights: Tensor, hops: int) -> Tensor:
    """[X, BX, B^2 X, ...], B being D^-1/2 (W + I) D^-1/2 of symmetric weights W."""
    graph, found = DenseGraph(weights), [x]
    for _ in range(hops):
        found.append(graph.propagate(found[-1]))
    return torch.cat(found, dim=1)


def correct(
    graph: WholeGraph, knowledge: Tensor, *, alpha: float, least: float, hops: int
) -> Corrected:
    """Mix a graph's edges with links between nodes that are predicted alike.

    Parameters
    ----------
    knowledge : float tensor, shape (num_nodes, num_classes)
        P of this graph, what the averaged model predicts.
    alpha : float
        Share of the edges.
    least, hops : float, int
        See :func:`predicted_links` and :func:`smoothed`.

    Raises
    ------
    DataError
        As :func:`check_size`.
    """
    check_size(graph.num_nodes)
    x = dense_rows(graph.features)
    links = predicted_links(knowledge, least)
    edges = graph.adjacency.to_dense().to(links.dtype)
    mixed = alpha * edges + (1 - alpha) * links
    return Corrected(x, smoothed(x, mixed, hops), links)


def signed_similarity(features: Tensor, links: Tensor, beta: float) -> Tensor:
    """Q', (num_nodes, num_nodes), from logits F and links S; 1 is on the diagonal.

    Q = beta S + (1 - beta) R with R the cosines of softmax(F), diagonal 0. Above its
    mean m, Q becomes (Q - m) / (max - m), else -Q / m, as in the authors' code.
    """
    rows = nn.functional.normalize(torch.softmax(features, 1), dim=1)
    eye = torch.eye(len(rows), dtype=rows.dtype, device=rows.device)
    q = beta * links + (1 - beta) * (rows @ rows.t()) * (1 - eye)
    mean, most = q.mean(), q.max()
    tiny = torch.finfo(q.dtype).tiny  # of equal entries nothing is above the mean
    above = (q - mean) / (most - mean).clamp(min=tiny)
    below = -q / mean.clamp(min=tiny)
    return torch.where(q > mean, above, below) + eye


class Branches(nn.Module):
    """The homophilous network and the three heterophilous ones."""

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        width: int,
        hops: int,
        beta: float,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        wide, self.beta = (hops + 1) * num_features, beta
        two, three = [width, num_classes], [width, width, num_classes]
        self.homo = Perceptron([wide, *two], dropout, generator)
        self.plain = Perceptron([num_features, *three], dropout, generator)
        self.smooth = Perceptron([wide, *three], dropout, generator)
        self.spread = Perceptron([wide, *three], dropout, generator)
        self.slopes = nn.ParameterList(torch.full((1,), 0.25) for _ in range(3))

    @override
    def forward(self, graph: Corrected, noise: torch.Generator | None) -> Outputs:
        """Logits of all nodes by each network; dropout iff ``noise``."""
        of_homo, of_both, of_spread = self.slopes
        f = self.spread(graph.smooth, of_spread, noise)
        q = signed_similarity(f, graph.links, self.beta)
        near, far = prelu(q, of_spread) @ f, prelu(-q, of_spread) @ f
        return Outputs(
            homo=self.homo(graph.smooth, of_homo, noise),
            plain=self.plain(graph.x, of_both, noise),
            smooth=self.smooth(graph.smooth, of_both, noise),
            spread=(torch.softmax(near, 1) - torch.softmax(far, 1) + f) / 2,
        )


def branch_loss(out: Outputs, knowledge: Tensor, y: Tensor, train: Tensor) -> Tensor:
    """Cross-entropies on training nodes; the homophilous branch also stays near P."""
    total = cross_entropy(out.homo[train], y[train])
    total = total + ((out.homo - knowledge) ** 2).mean()
    for z in (out.plain, out.smooth, out.spread):
        total = total + cross_entropy(z[train], y[train])
    return total


def fused(out: Outputs, knowledge: Tensor, share: float) -> Tensor:
    """Probabilities: ``share`` of the homophilous branch, the rest of the other."""
    homo = (torch.softmax(out.homo, 1) + torch.softmax(knowledge, 1)) / 2
    parts = (out.plain, out.smooth, out.spread)
    hete = torch.stack([torch.softmax(z, 1) for z in parts]).mean(0)
    return share * homo + (1 - share) * hete


def as_logits(probabilities: Tensor) -> Tensor:
    """Logarithms, finite also of 0."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


class AdaFGLNet(nn.Module):
    """The averaged GCN, and the branches that never leave the client."""

    def __init__(self, extractor: NodeGNN, branches: Branches) -> None:
        super().__init__()
        self.extractor, self.branches = extractor, branches


class AdaFGLPredictor(AdaFGLNet):
    """A client's networks, and the ``share`` of its homophilous branch.

    If the branches are ``UNTRAINED``, the averaged GCN predicts.
    """

    share: Tensor

    def __init__(self, extractor: NodeGNN, branches: Branches) -> None:
        super().__init__(extractor, branches)
        self.register_buffer("share", torch.tensor(UNTRAINED, dtype=torch.float64))
