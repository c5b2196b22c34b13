"""The graphs of several clients that classify nodes, as one with padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.data import IntArray

from ..graphs.csr import csr, row_pointer, send
from ..graphs.ops import SparseRows
from ..graphs.whole_graph import WholeGraph


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
        Rows of the nodes to train on, padded by a client's first node.
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
    """Stack graphs with features of one width and form, each with nodes to train on."""
    count, device = len(graphs), graphs[0].y.device
    num_nodes = np.array([g.num_nodes for g in graphs])
    height = int(num_nodes.max())
    num_train = np.array([len(g.train) for g in graphs])
    most = int(num_train.max())
    own = [torch.nn.functional.pad(g.train, (0, most - len(g.train))) for g in graphs]
    first = torch.arange(count, device=device)[:, None] * height
    weight = np.where(np.arange(most) < num_train[:, None], 1 / num_train[:, None], 0.0)
    kind = torch.get_default_dtype()
    y = torch.cat([g.y[r] for g, r in zip(graphs, own, strict=True)])
    y[torch.from_numpy(weight.flatten() == 0).to(device)] = 0  # padding may have none
    return StackedNodes(
        x=_features(graphs, num_nodes, height),
        normalized=_blocks([g.normalized for g in graphs], num_nodes, height, height),
        train=(torch.stack(own) + first).flatten(),
        y=y,
        weight=torch.from_numpy(weight).to(device, kind).flatten(),
        num_nodes=num_nodes,
    )


def _features(
    graphs: Sequence[WholeGraph], num_nodes: IntArray, height: int
) -> Tensor | SparseRows:
    parts = [g.x for g in graphs]
    if isinstance(parts[0], SparseRows):
        sparse = [p for p in parts if isinstance(p, SparseRows)]
        width = parts[0].rows.shape[1]
        widths = np.full(len(parts), width)
        return SparseRows(
            _blocks([p.rows for p in sparse], num_nodes, height, width),
            _blocks([p.columns for p in sparse], widths, width, height),
        )
    dense = [p for p in parts if isinstance(p, Tensor)]
    x = dense[0].new_zeros(len(dense), height, dense[0].shape[1])
    for row, part in enumerate(dense):
        x[row, : len(part)] = part
    return x


def _blocks(
    parts: Sequence[Tensor], num_rows: IntArray, height: int, width: int
) -> Tensor:
    """Block-diagonal CSR matrix, each block padded to (height, width)."""
    device = parts[0].device
    counts = torch.zeros(len(parts), height, dtype=torch.int64, device=device)
    for row, part in enumerate(parts):
        counts[row, : num_rows[row]] = part.crow_indices().diff()
    sizes = [p.values().numel() for p in parts]
    shift = torch.repeat_interleave(
        send(np.arange(len(parts)) * width, device),
        send(np.array(sizes), device),
        output_size=sum(sizes),
    )
    return csr(
        row_pointer(counts.flatten()),
        torch.cat([p.col_indices() for p in parts]) + shift,
        len(parts) * width,
        torch.cat([p.values() for p in parts]),
    )
