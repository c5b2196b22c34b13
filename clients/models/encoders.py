"""Encoders that read direction, features and weights of edges, or no edge at all.

What each of them reads of an edge stands in ``core.config``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import READ_FEATURES, READ_WEIGHTS

from ..graphs.batching import Batch
from ..graphs.ops import linear, project, project_rows, relu_dropout, sum_pool
from ..graphs.sampling import SampledGraph
from ..graphs.whole_graph import ItemEdges, WholeGraph
from ..job import ModelSpec

Graph: TypeAlias = Batch | WholeGraph | SampledGraph
MOST_MESSAGES = 1 << 18  # that are held at a time while nothing is trained
NUM_HEADS = 4  # of GATv2, whose outputs are averaged
_PNA = {
    "aggregators": ["mean", "min", "max", "std"],
    "scalers": ["identity", "amplification", "attenuation"],
}


class NoMessages(nn.Module):
    """A layer that reads each node by itself."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    @override
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(num_nodes, hidden) -> (num_nodes, hidden)."""
        return self.mlp(x)  # type: ignore[no-any-return]


class Sizes(NamedTuple):
    """What layers are made of.

    Parameters
    ----------
    edge_dim : int
        Features of an edge that the layer reads, its weight included.
    mean_degree : float
        For PNA: by its logarithm the layer scales what nodes receive.
    """

    hidden_dim: int
    edge_dim: int = 0
    mean_degree: float = 0.0


def _layer(name: str, sizes: Sizes) -> nn.Module:
    """Make a layer of PyG, which draws from torch's global generator."""
    from torch_geometric import nn as pyg  # here, as it takes a second

    width, edge_dim = sizes.hidden_dim, sizes.edge_dim or None

    def mlp() -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )

    def pna() -> nn.Module:
        deg = torch.ones(2, device="cpu")  # only statistics are kept, set below
        layer: Any = pyg.PNAConv(width, width, **_PNA, deg=deg, edge_dim=edge_dim)
        degree = torch.tensor(sizes.mean_degree)
        layer.aggr_module.avg_deg_lin.copy_(degree)
        layer.aggr_module.avg_deg_log.copy_((degree + 1).log())
        made: nn.Module = layer
        return made

    make: dict[str, Callable[[], nn.Module]] = {
        "gin": lambda: pyg.GINConv(mlp()),
        "gine": lambda: pyg.GINEConv(mlp(), edge_dim=edge_dim),
        "gcn": lambda: pyg.GCNConv(width, width, normalize=False),  # see _pass
        "graphconv": lambda: pyg.GraphConv(width, width),
        "gatv2": lambda: pyg.GATv2Conv(
            width, width, NUM_HEADS, concat=False, edge_dim=edge_dim
        ),
        "mlp": lambda: NoMessages(mlp()),
        "pna": pna,
        "sage": lambda: pyg.SAGEConv(width, width),
    }
    return make[name]()


def edge_features(graph: Graph | ItemEdges, width: int) -> Tensor | None:
    """Features of each edge, then its weight, (num_edges, width); None without any.

    A number of a column is expanded to a row with a one there.
    """
    parts, attr, weight = [], graph.edge_attr, graph.edge_weight
    if attr is not None and attr.dim() == 1:
        attr = nn.functional.one_hot(attr, width - (weight is not None)).float()
    if attr is not None:
        parts.append(attr)
    if weight is not None:
        parts.append(weight[:, None])
    return torch.cat(parts, 1) if parts else None


def _by_parts(
    conv: nn.Module, x: Tensor, index: Tensor, beside: dict[str, Tensor]
) -> Tensor:
    """Return what a layer makes of all nodes, some nodes at a time.

    A part has all edges that end at its nodes, and is as large as its memory allows.
    """
    from torch_geometric.nn import GCNConv, PNAConv

    splits = not isinstance(conv, GCNConv | PNAConv | NoMessages)
    order = torch.argsort(index[1], stable=True)
    last = torch.bincount(index[1], minlength=len(x)).cumsum(0)
    found, begin, done = [], 0, 0
    while begin < len(x):
        fitting = int(torch.searchsorted(last, done + MOST_MESSAGES, right=True))
        end = max(fitting, begin + 1)
        rows = order[done : int(last[end - 1])]
        own = torch.arange(begin, end, device=x.device)
        source, target = index[:, rows]
        others = torch.unique(source)
        nodes = torch.cat([own, others[(others < begin) | (others >= end)]])
        local = torch.empty(len(x), dtype=torch.int64, device=x.device)
        local[nodes] = torch.arange(len(nodes), device=x.device)
        ends = torch.stack([local[source], target - begin])
        part = {name: values[rows] for name, values in beside.items()}
        # Sources and targets apart, where the layer takes them so: fewer products.
        given = (x[nodes], x[begin:end]) if splits else x[nodes]
        found.append(conv(given, ends, **part)[: end - begin])
        begin, done = end, int(last[end - 1])
    return torch.cat(found)


class Layer(nn.Module):
    """Messages along edges, and, with layers of its own, against them.

    Parameters
    ----------
    name : str
        Of the encoder.
    direction : str
        "forward": along edges. "both": along each edge and its reverse. "separate":
        the sum of a layer along edges and another one against them.

    Source
    ------
    "separate" is reverse message passing of Egressy et al. 2024 (AAAI),
    arXiv:2306.11586, Sec. 4.
    """

    def __init__(self, name: str, sizes: Sizes, direction: str) -> None:
        super().__init__()
        self._is_gcn = name == "gcn"
        self.along = _layer(name, sizes)
        self.against = _layer(name, sizes) if direction == "separate" else None

    @override
    def forward(self, x: Tensor, edge_index: Tensor, **beside: Tensor) -> Tensor:
        """(num_nodes, hidden) -> (num_nodes, hidden)."""
        found = self._pass(self.along, x, edge_index, beside)
        if self.against is None:
            return found
        return found + self._pass(self.against, x, edge_index.flip(0), beside)

    def _pass(
        self, conv: nn.Module, x: Tensor, index: Tensor, beside: dict[str, Tensor]
    ) -> Tensor:
        if self._is_gcn:
            from torch_geometric.nn.conv.gcn_conv import gcn_norm

            weight = beside.get("edge_weight")
            index, weight = gcn_norm(index, weight, len(x), dtype=x.dtype)
            beside = {"edge_weight": weight}
        if torch.is_grad_enabled() or index.shape[1] <= MOST_MESSAGES:
            return conv(x, index, **beside)  # type: ignore[no-any-return]
        return _by_parts(conv, x, index, beside)


class EdgeEncoder(nn.Module):
    """Vectors of nodes: ``pre``, then layers with ReLU and dropout.

    Parameters
    ----------
    name, direction : str
        See :class:`Layer`.
    dropout : float
        After each layer, while training.
    common, own : torch.Generator
        Initialise ``convs`` and ``pre``.
    """

    def __init__(
        self,
        name: str,
        direction: str,
        *,
        num_features: int,
        num_layers: int,
        sizes: Sizes,
        dropout: float,
        common: torch.Generator,
        own: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout, self._name, self._direction = dropout, name, direction
        self._edge_dim = sizes.edge_dim
        self.pre = linear(num_features, sizes.hidden_dim, own)
        with torch.random.fork_rng(devices=[]):  # PyG draws from the global generator
            torch.manual_seed(common.initial_seed())
            self.convs = nn.ModuleList(
                Layer(name, sizes, direction) for _ in range(num_layers)
            )

    def edges(self, graph: Graph) -> tuple[Tensor, dict[str, Tensor]]:
        """Edges along which messages pass, and what layers read of them."""
        index, beside = graph.edge_index, dict[str, Tensor]()
        if self._name in READ_FEATURES:
            attr = edge_features(graph, self._edge_dim)
            beside = {} if attr is None else {"edge_attr": attr}
        elif self._name in READ_WEIGHTS and graph.edge_weight is not None:
            beside = {"edge_weight": graph.edge_weight}
        if len(back := self.turned(graph)):
            index = torch.cat([index, index[:, back].flip(0)], 1)
            beside = {n: torch.cat([t, t[back]]) for n, t in beside.items()}
        return index, beside

    def turned(self, graph: Graph) -> Tensor:
        """Edges along whose reverse messages pass with the same layers, too."""
        index = graph.edge_index
        is_drawn = isinstance(graph, SampledGraph)  # messages, whichever their way
        if self._direction != "both" or graph.is_undirected or is_drawn:
            return index[0, :0]
        return torch.nonzero(index[0] != index[1])[:, 0]

    def embed(self, graph: Graph, generator: torch.Generator | None) -> Tensor:
        """Vectors of nodes, (num_nodes, hidden), before the last ReLU.

        Dropout iff a generator is given.
        """
        if isinstance(graph, Batch):
            x = project(graph.x, self.pre)
        else:
            x = project_rows(graph.features, self.pre.weight) + self.pre.bias
        index, beside = self.edges(graph)
        *first, last = self.convs
        for conv in first:
            x = conv(x, index, **beside)
            if isinstance(graph, SampledGraph):
                graph = graph.inner()
                x = graph.rows(x)
                index, beside = self.edges(graph)
            x = relu_dropout(x, self.dropout, generator)
        return last(x, index, **beside)  # type: ignore[no-any-return]


class EdgeGNN(EdgeEncoder):
    """An encoder, and what predicts for graphs, for nodes or for pairs of nodes.

    Graphs: the sum over nodes, and features of the graph -> ``post`` -> ReLU, dropout
    -> ``readout``. Nodes: ``readout`` alone. Edges: both ends (undirected: their sum
    and product), and the edge's own features -> as graphs. Links: the product of both
    ends, of which a directed link's target goes through ``post``, and ``readout`` of
    their sum.

    Parameters
    ----------
    head : str
        "graphs", "nodes", "edges" or "links".
    num_beside : int
        Features of a graph, or of the edge of a pair.
    common, own : torch.Generator
        Initialise ``convs`` and the rest; two, as in ``GIN``.
    """

    def __init__(
        self,
        head: str,
        num_outputs: int,
        *,
        num_beside: int = 0,
        sizes: Sizes,
        common: torch.Generator,
        own: torch.Generator,
        **encoder: Any,
    ) -> None:
        super().__init__(**encoder, sizes=sizes, common=common, own=own)
        width = sizes.hidden_dim
        if head != "nodes":
            num_in = (1 + (head == "edges")) * width + num_beside
            self.post = linear(num_in, width, own)
        self.readout = linear(width, num_outputs, own)
        self._head, self._has_beside = head, num_beside > 0

    def represent(self, graph: Any, generator: torch.Generator | None) -> Tensor:
        """Input of ``readout``, a row for each graph, node or edge."""
        h = self.embed(graph, generator)
        if self._head != "edges":
            h = relu_dropout(h, self.dropout, generator)
        if self._head == "nodes":
            return h
        if self._head == "graphs":
            h = sum_pool(h, graph.membership, graph.graph_of_node)
            beside = graph.graph_x
        else:
            u, v = h[graph.pairs]
            h = torch.cat([u + v, u * v] if graph.is_undirected else [u, v], 1)
            items = graph.items if self._has_beside else None
            beside = edge_features(items, self._edge_dim) if items else None
        if beside is not None:
            h = torch.cat([h, beside], 1)
        return relu_dropout(self.post(h), self.dropout, generator)

    @override
    def forward(self, graph: Any, generator: torch.Generator | None) -> Tensor:
        """Logits, shape (num_rows, num_outputs); dropout iff a generator is given."""
        if self._head == "links":
            return self.links(graph, generator, graph.pairs)
        return self.readout(self.represent(graph, generator))  # type: ignore[no-any-return]

    def links(
        self, graph: Any, generator: torch.Generator | None, pairs: Tensor
    ) -> Tensor:
        """Logit of each of these pairs, (2, num_pairs) -> (num_pairs, 1)."""
        u, v = self.embed(graph, generator)[pairs]
        to = v if graph.is_undirected else self.post(v)
        return (u * to).sum(1, keepdim=True) + self.readout(u + v)  # type: ignore[no-any-return]


def edge_gnn(spec: ModelSpec[Any], head: str) -> EdgeGNN:
    """Build the encoder of a run and its head."""
    settings = spec.settings
    beside = {"graphs": spec.num_graph_features, "edges": spec.num_edge_features}
    return EdgeGNN(
        head,
        spec.num_classes,
        num_beside=beside.get(head, 0),
        name=settings.encoder,
        direction=settings.direction,
        num_features=spec.num_features,
        num_layers=settings.num_layers,
        dropout=settings.dropout,
        sizes=Sizes(settings.hidden_dim, spec.num_edge_features, settings.pna_degree),
        common=spec.common_generator(),
        own=spec.private_generator(),
    )
