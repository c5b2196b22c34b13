"""FedSage+'s generator of neighbours, and the graph that it mends.

Zhang et al. 2021, arXiv:2106.13430. Some nodes are hidden; from what is left a
GraphSAGE predicts how many neighbours a node lost, and their features.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam
from typing_extensions import override

from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import DataError

from .graphs.csr import csr, row_pointer
from .graphs.ops import linear, sum_neighbours
from .graphs.whole_graph import NodeStructure
from .models.node_gnn import NodeGNN, SAGEConv


@final
class MendedGraph(NodeStructure):
    """A client's graph with generated neighbours, in both directions.

    Rows are the graph's nodes, then the generated ones, which are in no split.

    Parameters
    ----------
    adjacency : sparse CSR tensor, shape (num_nodes, num_nodes)
        Symmetric, entries 1.
    x : tensor, shape (num_nodes, num_features)
    generated : tensor, shape (num_new, num_features)
    owner : int64 tensor, shape (num_new,)
        Node on which each generated one hangs.
    """

    def __init__(
        self, adjacency: Tensor, x: Tensor, generated: Tensor, owner: Tensor
    ) -> None:
        self.x = torch.cat([x, generated])
        self.num_nodes, self.owner = len(x), owner
        self._adjacency = adjacency
        degree = adjacency.crow_indices().diff().to(x.dtype)
        extra = torch.bincount(owner, minlength=len(x)).to(x.dtype)
        hanging = torch.ones(len(owner), dtype=x.dtype, device=x.device)
        self._degree = torch.cat([degree + extra, hanging])[:, None]

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over neighbours, (num_nodes + num_new, d) -> the same."""
        known, new = x[: self.num_nodes], x[self.num_nodes :]
        summed = sum_neighbours(known, self._adjacency)
        return torch.cat([summed.index_add(0, self.owner, new), known[self.owner]])

    @override
    def propagate(self, x: Tensor) -> Tensor:
        root = (self._degree + 1).rsqrt()
        scaled = root * x
        return root * (self._sum(scaled) + scaled)

    @override
    def mean(self, x: Tensor) -> Tensor:
        return self._sum(x) / self._degree.clamp(min=1)


_WIDTHS = (256, 2048)  # of the feature generator, as in the authors' code


@final
class NeighbourGenerator(nn.Module):
    """Encoder, then the number of missing neighbours and their features.

    Parameters
    ----------
    noise : float
        Standard deviation of what is added to latent vectors.
    generator : torch.Generator
        Initialises every tensor.
    """

    def __init__(
        self,
        num_features: int,
        *,
        hidden_dim: int,
        max_neighbours: int,
        noise: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.max_neighbours, self.noise = max_neighbours, noise
        self.encoder = NodeGNN(
            num_features,
            1,  # readout: the number of missing neighbours
            hidden_dim=hidden_dim,
            num_layers=2,
            dropout=0.0,
            generator=generator,
            conv=SAGEConv,
        )
        widths = [hidden_dim, *_WIDTHS, max_neighbours * num_features]
        self.layers = nn.ModuleList(
            linear(*pair, generator) for pair in itertools.pairwise(widths)
        )

    @override
    def forward(
        self, graph: MendedGraph, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Predict for each node of a graph.

        Returns
        -------
        counts : tensor, shape (num_nodes,)
            Missing neighbours, >= 0.
        features : tensor, shape (num_nodes, max_neighbours, num_features)
            In (-1, 1).
        """
        h = self.encoder.represent(graph.x, graph)
        counts = torch.relu(self.encoder.readout(h)).squeeze(1)
        drawn = torch.empty_like(h).normal_(0, 1, generator=generator)
        z = h + self.noise * drawn
        return counts, self._features(z)

    def _features(self, z: Tensor) -> Tensor:
        """Latent vectors, (num_nodes, hidden) -> features of their neighbours."""
        for layer in list(self.layers)[:-1]:
            z = torch.relu(layer(z))
        features = torch.tanh(self.layers[-1](z))
        return features.view(len(z), self.max_neighbours, -1)


@dataclass(frozen=True, kw_only=True)
class Impaired:
    """A graph with some nodes hidden, and what the other nodes lost by that.

    ``kept`` are its nodes in the whole graph; ``missing`` counts each one's hidden
    neighbours; ``lost`` (num_lost, 2) pairs a node of ``kept``, by position, with a
    hidden neighbour of the whole graph.
    """

    kept: IntArray
    edge_index: IntArray
    missing: IntArray
    lost: IntArray


def impair(edge_index: IntArray, num_nodes: int, hidden: IntArray) -> Impaired:
    """Hide nodes; ``edge_index`` (2, num_edges) has both directions, sorted."""
    is_hidden = np.zeros(num_nodes, bool)
    is_hidden[hidden] = True
    kept = np.flatnonzero(~is_hidden)
    position = np.cumsum(~is_hidden) - 1
    source, target = edge_index
    inside = ~is_hidden[source] & ~is_hidden[target]
    cut = ~is_hidden[source] & is_hidden[target]
    lost = np.stack([position[source[cut]], target[cut]], axis=1)
    return Impaired(
        kept=kept,
        edge_index=position[edge_index[:, inside]],
        missing=np.bincount(lost[:, 0], minlength=len(kept)),
        lost=lost,
    )


def choose_neighbours(counts: Tensor, max_neighbours: int) -> tuple[Tensor, Tensor]:
    """Node and slot of each neighbour to add: the count rounded, at most all slots.

    Raises
    ------
    DataError
        A count is not finite.
    """
    check_generated(counts)
    num = counts.detach().round().clamp(max=max_neighbours).long()
    owner = torch.repeat_interleave(torch.arange(len(num), device=num.device), num)
    first = torch.cumsum(num, 0) - num
    slot = torch.arange(len(owner), device=num.device) - first[owner]
    return owner, slot


def check_generated(values: Tensor) -> None:
    """Refuse counts or features of generated neighbours that are not finite.

    Raises
    ------
    DataError
    """
    if not values.isfinite().all():
        raise DataError(
            "the generator of neighbours has overflowed; lower"
            " fedsage-plus.learning-rate or look at the client's features"
        )


def feature_loss(features: Tensor, lost: Tensor, truth: Tensor) -> Tensor:
    """Mean over lost neighbours of the squared distance to the nearest generated one.

    Parameters
    ----------
    features : tensor, shape (num_nodes, max_neighbours, num_features)
    lost : int64 tensor, shape (num_lost,)
        Node that lost each neighbour.
    truth : tensor, shape (num_lost, num_features)

    Source
    ------
    Zhang et al. 2021, the local part of the feature loss.
    """
    if not len(lost):
        return features.sum() * 0
    with torch.no_grad():
        distances = (features[lost] - truth[:, None]).square().mean(2)
        nearest = distances.argmin(1)
    return (features[lost, nearest] - truth).square().mean(1).mean()


def cross_loss(features: Tensor, others: Sequence[Tensor]) -> Tensor:
    """Mean squared distance of generated neighbours to the nearest row elsewhere.

    Parameters
    ----------
    features : tensor, shape (num_nodes, max_neighbours, num_features)
    others : sequence of tensors, shapes (num_rows_j, num_features)

    Source
    ------
    Zhang et al. 2021, the part of the feature loss with ``min_{u in V_j}``. Differs: a
    mean over nodes, generated neighbours, features and other clients, which the paper
    sums; over all ``max_neighbours`` of a node, not only as many as it will get.
    """
    generated = features.flatten(0, 1)  # (num_nodes * max_neighbours, num_features)
    with torch.no_grad():
        nearest = [rows[torch.cdist(generated, rows).argmin(1)] for rows in others]
    distances = [(generated - rows).square().mean() for rows in nearest]
    return torch.stack(distances).mean()


def adjacency_of(edge_index: IntArray, num_nodes: int, device: torch.device) -> Tensor:
    """Sparse CSR tensor of sorted edges."""
    edges = torch.from_numpy(np.ascontiguousarray(edge_index, np.int64)).to(device)
    degree = torch.bincount(edges[0], minlength=num_nodes)
    return csr(row_pointer(degree), edges[1], num_nodes)


def unmended(adjacency: Tensor, x: Tensor) -> MendedGraph:
    """Give a graph without generated neighbours."""
    nobody = torch.zeros(0, dtype=torch.int64, device=x.device)
    return MendedGraph(adjacency, x, x[:0], nobody)


@torch.enable_grad()
def train_generator(
    model: NeighbourGenerator,
    classifier: NodeGNN,
    impaired: Impaired,
    x: Tensor,
    y: Tensor,
    train: Tensor,
    *,
    steps: int,
    learning_rate: float,
    weight_decay: float,
    generator: torch.Generator,
    others: Sequence[Tensor] = (),
) -> list[float]:
    """Fit the generator, with a classifier that uses what it makes; losses per step.

    Parameters
    ----------
    model, classifier : modules
        Changed in place.
    x, y : tensors
        Features and classes of all nodes, hidden ones too.
    train : int64 tensor
        Training nodes, as positions in ``impaired.kept``; may be empty.
    others : sequence of tensors
        Rows of other clients, for :func:`cross_loss`; none, no such loss.

    Source
    ------
    Zhang et al. 2021: smooth L1 of the counts + feature loss + cross-entropy on
    the mended graph, weighted alike; + the cross-client loss, of weight alpha = 1.
    """
    device = x.device
    kept = torch.from_numpy(impaired.kept).to(device)
    known, labels = x[kept], y[kept]
    adjacency = adjacency_of(impaired.edge_index, len(kept), device)
    missing = torch.from_numpy(impaired.missing).to(x)
    with torch.no_grad():  # a ReLU that starts at 0 for every node never learns
        model.encoder.readout.bias.fill_(missing.mean())
    lost = torch.from_numpy(impaired.lost).to(device)
    graph = unmended(adjacency, known)
    optimizer = Adam(
        [*model.parameters(), *classifier.parameters()],
        lr=learning_rate,
        weight_decay=weight_decay,
        fused=True,
    )
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        counts, features = model(graph, generator)
        loss = nn.functional.smooth_l1_loss(counts, missing)
        loss = loss + feature_loss(features, lost[:, 0], x[lost[:, 1]])
        if others:
            loss = loss + cross_loss(features, others)
        if len(train):
            owner, slot = choose_neighbours(counts, model.max_neighbours)
            mended = MendedGraph(adjacency, known, features[owner, slot], owner)
            logits = classifier.logits(mended.x, mended)[train]
            loss = loss + nn.functional.cross_entropy(logits, labels[train])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return [float(value) for value in losses]
