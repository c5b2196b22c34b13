"""The graphs of several clients that classify nodes, as one with padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray

from ..graphs.csr import Parts, row_pointer, send
from ..graphs.ops import SparseRows
from ..graphs.whole_graph import WholeGraph
from .padding import begins, padded


@dataclass(frozen=True, kw_only=True)
class StackedNodes:
    """The graphs of C clients, with N rows for nodes of each.

    Parameters
    ----------
    x : float32 tensor (C, N, num_features), or SparseRows
        Sparse rows are block-diagonal: (C * N, C * num_features).
    normalized : sparse CSR tensor, shape (C * N, C * N)
        As in :class:`~clients.graphs.whole_graph.WholeGraph`, a block for each client.
    train : int64 tensor, shape (C * T,)
        Rows of the nodes to train on, padded by a client's first one.
    y : int64 tensor, shape (C * T,)
        Their classes.
    weight : float32 tensor, shape (C * T,)
        1 / number of the client's nodes to train on, or 0 for padding.
    num_nodes : int64 array, shape (C,)
    """

    x: Tensor | SparseRows
    normalized: Tensor
    train: Tensor
    y: Tensor
    weight: Tensor
    num_nodes: IntArray


def stack_nodes(graphs: Sequence[WholeGraph]) -> StackedNodes:
    """Stack graphs with features of one width and form, each with nodes to train on.

    No operator is called for each graph: on a GPU a call takes longer than its work.
    """
    num_nodes = np.array([g.num_nodes for g in graphs])
    num_train = np.array([len(g.train) for g in graphs])
    height, most = int(num_nodes.max()), int(num_train.max())
    device = graphs[0].y.device
    # The positions of training nodes among those of all clients, joined.
    place, is_own = np.arange(most), np.arange(most) < num_train[:, None]
    positions = begins(num_train)[:, None] + np.where(is_own, place, 0)
    nodes = torch.cat([g.train for g in graphs])[send(positions, device)]
    weight = np.where(is_own, 1 / num_train[:, None], 0.0).flatten()
    first = send(np.arange(len(graphs))[:, None] * height, device)
    joined = send(begins(num_nodes)[:, None], device)
    return StackedNodes(
        x=_features(graphs, num_nodes, height),
        normalized=_blocks([g.normalized for g in graphs], height, height).matrix,
        train=(nodes + first).flatten(),
        y=torch.cat([g.y for g in graphs])[(nodes + joined).flatten()],
        weight=torch.from_numpy(weight).to(device, torch.get_default_dtype()),
        num_nodes=num_nodes,
    )


def _features(
    graphs: Sequence[WholeGraph], num_nodes: IntArray, height: int
) -> Tensor | SparseRows:
    parts = [g.features for g in graphs]
    if isinstance(parts[0], SparseRows):
        sparse = [p for p in parts if isinstance(p, SparseRows)]
        width = sparse[0].rows.num_columns
        return SparseRows(
            _blocks([p.rows for p in sparse], height, width),
            _blocks([p.columns for p in sparse], width, height),
        )
    dense = torch.cat([p for p in parts if isinstance(p, Tensor)])
    x = dense.new_zeros(len(parts) * height, dense.shape[1])
    x[send(padded(num_nodes, height), dense.device)] = dense
    return x.view(len(parts), height, -1)


def _blocks(parts: Sequence[Parts], height: int, width: int) -> Parts:
    """Block-diagonal matrix, each block padded to (height, width)."""
    device = parts[0].columns.device
    num_rows = np.array([len(p.row_ptr) - 1 for p in parts])
    # Differences of the joined pointers; those from one part to the next are no row.
    differences = torch.cat([p.row_ptr for p in parts]).diff()
    is_row = np.ones(len(differences), bool)
    is_row[np.cumsum(num_rows + 1)[:-1] - 1] = False
    counts = torch.zeros(len(parts) * height, dtype=torch.int64, device=device)
    rows = send(np.flatnonzero(is_row), device)
    counts[send(padded(num_rows, height), device)] = differences[rows]
    sizes = np.array([len(p.columns) for p in parts])
    shift = np.repeat(np.arange(len(parts)) * width, sizes)
    return Parts(
        row_ptr=row_pointer(counts),
        columns=torch.cat([p.columns for p in parts]) + send(shift, device),
        values=torch.cat([p.values for p in parts]),
        num_columns=len(parts) * width,
    )
