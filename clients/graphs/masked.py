"""Graphs whose messages are multiplied by a mask, through which gradients reach edges.

Degrees, and what layers divide by them, stay those of all edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from .batching import Batch, ClientData
from .node_data import NodeData
from .whole_graph import WholeGraph


def passed(x: Tensor, edges: Tensor, mask: Tensor) -> Tensor:
    """Sum at each target of edges (2, num_edges) what their sources have, masked."""
    return torch.zeros_like(x).index_add(0, edges[1], mask[:, None] * x[edges[0]])


class MaskedEdges:
    """An adjacency matrix (num_nodes, num_nodes) with the mask in the place of ones."""

    def __init__(self, batch: Batch, mask: Tensor) -> None:
        self.edges, self.mask, self._whole = batch.edge_index, mask, batch.adjacency
        self.dtype = batch.adjacency.dtype

    def __matmul__(self, x: Tensor) -> Tensor:
        """Sum over neighbours, (num_nodes, d) -> the same."""
        return passed(x, self.edges, self.mask)

    def crow_indices(self) -> Tensor:
        """Those of all edges."""
        return self._whole.crow_indices()


@dataclass(frozen=True, kw_only=True)
class MaskedGraph(WholeGraph):
    """One graph; ``edge_mask`` has an entry for each edge."""

    edge_mask: Tensor

    @override
    def propagate(self, x: Tensor) -> Tensor:
        degree = self.adjacency.crow_indices().diff()
        root = (degree + 1).to(x.dtype).rsqrt()[:, None]
        h = root * x
        return root * (h + passed(h, self.edge_index, self.edge_mask))

    @override
    def mean(self, x: Tensor) -> Tensor:
        return passed(x, self.edge_index, self.edge_mask) * self.inverse_degree


def graph_of(data: ClientData) -> Batch | WholeGraph:
    """Return the only graph, or batch, that a model predicts for."""
    return data.whole if isinstance(data, NodeData) else data.evaluation[0]


def with_inputs(
    data: ClientData, x: Tensor, edge_attr: Tensor | None, mask: Tensor
) -> ClientData:
    """Return data with other features of nodes and edges, and masked messages."""
    old: Any = graph_of(data)
    own = {f.name: getattr(old, f.name) for f in fields(old)} | {"edge_attr": edge_attr}
    if isinstance(data, NodeData):
        graph = MaskedGraph(**own | {"features": x}, edge_mask=mask)
        return replace(data, whole=graph)
    masked: Any = MaskedEdges(old, mask)
    batch = Batch(**own | {"x": x, "adjacency": masked})
    made = replace(data, evaluation=(batch,))
    vars(made)["evaluation_nodes"] = (batch,)  # of MoleculeData
    return made


@contextmanager
def masking_layers(model: nn.Module, edges: Tensor, mask: Tensor) -> Iterator[None]:
    """Let PyG's layers multiply messages along these edges by the mask, in this block.

    Edges that a layer adds, such as loops, are not masked.
    """
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    set_masks(model, mask, edges, apply_sigmoid=False)
    try:
        yield
    finally:
        clear_masks(model)
