"""Classifiers of the nodes of one graph."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...graphs.structure_encoding import encode_structure
from ...graphs.whole_graph import NodeData
from ..masked_gnn import MaskedGNN
from ..node_gnn import GCNConv, NodeGNN, SAGEConv
from ..star_gnn import StarGNN
from . import Architecture, Form, Generator


def _make(
    conv: type[nn.Module], a: Architecture, generator: Generator, _: Generator
) -> NodeGNN:
    widths = a.num_features, a.num_classes
    return NodeGNN(*widths, **a.shape(), generator=generator, conv=conv)


def _make_masked(a: Architecture, generator: Generator, _: Generator) -> MaskedGNN:
    widths, threshold = (a.num_features, a.num_classes), float(a.options["threshold"])
    return MaskedGNN(*widths, **a.shape(), generator=generator, threshold=threshold)


def _make_star(a: Architecture, generator: Generator, _: Generator) -> StarGNN:
    width = int(a.options["walk_length"]) + int(a.options["max_degree"])
    widths = a.num_features, width, a.num_classes
    return StarGNN(*widths, **a.shape(), generator=generator)


def _outputs(model: NodeGNN, data: NodeData, _: Mapping[str, Any]) -> Tensor:
    logits: Tensor = model(data.whole, None)
    return logits[held_out(data)]


def _outputs_of_star(
    model: StarGNN, data: NodeData, options: Mapping[str, Any]
) -> Tensor:
    graph, encoding = data.whole, encode(data, options)
    logits: Tensor = model(graph.features, encoding.to(graph.y.device), graph, None)
    return logits[held_out(data)]


def encode(data: NodeData, options: Mapping[str, Any]) -> Tensor:
    """Encode the place of each node as FedStar does: (num_nodes, width), on the CPU."""
    encoded = encode_structure(
        data.partition.graphs.edge_index,
        data.whole.num_nodes,
        walk_length=int(options["walk_length"]),
        max_degree=int(options["max_degree"]),
    )
    return torch.from_numpy(encoded)


def held_out(data: NodeData) -> Tensor:
    """Give the validation nodes, then the test nodes."""
    return torch.cat([data.whole.val, data.whole.test])


FORMS = {
    "gcn": Form(partial(_make, GCNConv), NodeData, _outputs),
    "graphsage": Form(partial(_make, SAGEConv), NodeData, _outputs),
    "masked-gcn": Form(_make_masked, NodeData, _outputs),
    "star": Form(_make_star, NodeData, _outputs_of_star),
}
