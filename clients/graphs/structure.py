"""Structure of graphs as numbers of nodes: degrees, walks, propagated labels.

Encoders see a :class:`Structure`, never an adjacency. Node features stay flat, one row
per node of the batch in the batch's order, so that linear layers and dropout masks are
the same on every structure; only the sums over neighbours are padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from .batching import Batch
from .ops import sum_neighbours
from .whole_graph import NodeStructure

NEGATIVE_SLOPE = 0.2
MAX_ONE = 700  # nodes of a single graph that is worth a dense matrix

Mask = Callable[[Tensor], Tensor]  # multiplies attention: dropout


class Structure(ABC):
    """Symmetric edge weights w among the nodes of a batch, without loops.

    Parameters
    ----------
    degree : tensor, shape (num_nodes,)
        Sum of w over a node's neighbours; of absolute values for signed weights that
        are to be normalised so.
    """

    degree: Tensor

    @abstractmethod
    def sum(self, x: Tensor) -> Tensor:
        """Row v becomes sum_u w_uv x_u: (num_nodes, d) -> the same."""

    def mean(self, x: Tensor) -> Tensor:
        """Row v becomes sum_u w_uv x_u / d_v; 0 if the degree is <= 0."""
        if self._inverse_degree is None:
            safe = torch.where(self.degree > 0, self.degree, torch.inf)
            self._inverse_degree = (1 / safe)[:, None]  # (num_nodes, 1)
        return self._inverse_degree * self.sum(x)

    _inverse_degree: Tensor | None = None

    def smooth(self, x: Tensor) -> Tensor:
        """D^-1/2 (W + I) D^-1/2 x, d_v being one more than the degree of v."""
        if self._inverse_root is None:
            self._inverse_root = power(1.0 + self.degree, -0.5)[:, None]
        h = self._inverse_root * x
        return self._inverse_root * (self.sum(h) + h)

    _inverse_root: Tensor | None = None


class CleanStructure(Structure):
    """Edges as they are: each has weight 1."""

    def attend_by_heads(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Attend with several heads side by side: (num_nodes, heads, d), flattened.

        ``source`` and ``target`` are of shape (num_nodes, heads).
        """
        heads = [
            self.attend(x[:, k], source[:, k], target[:, k], mask)
            for k in range(x.shape[1])
        ]
        return torch.cat(heads, 1)

    @abstractmethod
    def attend(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Row v becomes sum_u a_uv x_u, where u runs over neighbours and v itself.

        a_uv is the softmax over u of ``LeakyReLU(source_u + target_v)``, as of GAT.

        Parameters
        ----------
        x : tensor, shape (num_nodes, d)
        source, target : tensors, shape (num_nodes,)
        mask : callable, optional
            Applied to all a_uv at once.
        """


def power(degree: Tensor, exponent: float) -> Tensor:
    """``degree ** exponent``; 0 if the degree is <= 0."""
    safe = torch.where(degree > 0, degree, 1.0)
    return torch.where(degree > 0, safe**exponent, 0.0)


@final
class SparseStructure(CleanStructure):
    """Clean graphs by sparse products; sums are those of a dense 0/1 matrix.

    Graphs are undirected, without loops.
    """

    def __init__(self, batch: Batch) -> None:
        self._adjacency, self._edges = batch.adjacency, batch.edge_index
        self.degree = batch.adjacency.crow_indices().diff().to(batch.adjacency.dtype)

    @override
    def sum(self, x: Tensor) -> Tensor:
        return sum_neighbours(x, self._adjacency)

    @override
    def attend(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Attend along edges and one loop per node."""
        loops = torch.arange(len(x), device=x.device)
        u = torch.cat([self._edges[0], loops])
        v = torch.cat([self._edges[1], loops])
        scores = torch.nn.functional.leaky_relu(source[u] + target[v], NEGATIVE_SLOPE)
        largest = torch.full_like(target, -torch.inf)
        largest.scatter_reduce_(0, v, scores.detach(), "amax")
        a = torch.exp(scores - largest[v])
        total = torch.zeros_like(target).index_add(0, v, a)
        a = a / total[v]
        a = a if mask is None else mask(a)
        if not isinstance(self._adjacency, Tensor):
            ones = torch.ones_like(target)
            a = a * torch.cat([self._adjacency.mask, ones])
        return torch.zeros_like(x).index_add(0, v, a[:, None] * x[u])


@final
class OneGraph(CleanStructure):
    """A single clean graph as a dense 0/1 matrix: few, short operations.

    A molecule is so small that the number of operations counts, not their size. It is
    undirected, without loops.
    """

    def __init__(self, batch: Batch) -> None:
        n = len(batch.x)
        kind = torch.get_default_dtype() if batch.x.dim() == 1 else batch.x.dtype
        self._adjacency = batch.x.new_zeros(n, n, dtype=kind)
        self._adjacency[tuple(batch.edge_index)] = 1.0
        self.degree = self._adjacency.sum(1)
        self._average: Tensor | None = None
        self._barrier: Tensor | None = None

    @override
    def sum(self, x: Tensor) -> Tensor:
        return self._adjacency.to(x.dtype) @ x

    @override
    def mean(self, x: Tensor) -> Tensor:
        if self._average is None:
            self._average = self._adjacency / self.degree.clamp(min=1)[:, None]
        return self._average.to(x.dtype) @ x

    @override
    def attend(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        """Softmax over each row, pairs without an edge left out."""
        return self.attend_by_heads(x[:, None], source[:, None], target[:, None], mask)

    @override
    def attend_by_heads(
        self, x: Tensor, source: Tensor, target: Tensor, mask: Mask | None = None
    ) -> Tensor:
        if self._barrier is None:  # 0 on edges and the diagonal, elsewhere -inf
            self._barrier = torch.log(self._adjacency).fill_diagonal_(0.0)
        scores = torch.nn.functional.leaky_relu(
            source.t()[:, None] + target.t()[:, :, None], NEGATIVE_SLOPE
        )  # (heads, target, source)
        a = torch.softmax(scores + self._barrier.to(x.dtype), dim=2)
        a = a if mask is None else mask(a)
        return (a @ x.transpose(0, 1)).transpose(0, 1).flatten(1)


def clean_structure(batch: Batch) -> CleanStructure:
    """Edges of clean graphs, in the form that is fastest for the batch."""
    is_small = batch.num_graphs == 1 and len(batch.x) <= MAX_ONE
    is_small &= isinstance(batch.adjacency, Tensor)  # and not masked
    return OneGraph(batch) if is_small else SparseStructure(batch)


@final
class NoEdges(Structure):
    """No edges at all (epsilon = 0): the baseline of every use of structure."""

    def __init__(self, num_nodes: int, device: torch.device) -> None:
        self.degree = torch.zeros(num_nodes, device=device)

    @override
    def sum(self, x: Tensor) -> Tensor:
        """Zeros, (num_nodes, d): there are no neighbours."""
        return torch.zeros_like(x)


@torch.no_grad()
def propagate_labels(
    structure: NodeStructure,
    start: Tensor,
    labelled: Tensor,
    *,
    steps: int,
    alpha: float,
) -> Tensor:
    """Y <- alpha A Y + (1 - alpha) Y_0, ``steps`` times.

    Rows of the result, (num_nodes, num_classes), need not sum to 1.

    Parameters
    ----------
    structure : NodeStructure
        A is D^-1/2 (A + I) D^-1/2.
    start : float tensor, shape (num_nodes, num_classes)
        Y_0.
    labelled : int64 tensor
        Nodes whose start is added once more after each step.
    """
    y = start
    for _ in range(steps):
        y = alpha * structure.propagate(y) + (1 - alpha) * start
        y[labelled] += start[labelled]
    return y


_CELLS = 4_000_000  # entries of a block of columns that are held at a time


def encode_structure(
    edge_index: NDArray[np.integer],
    num_nodes: int,
    *,
    walk_length: int,
    max_degree: int,
) -> NDArray[np.float32]:
    """Random-walk return probabilities, then a one-hot degree.

    Parameters
    ----------
    edge_index : int array, shape (2, num_edges)
        Both directions of each edge.

    Returns
    -------
    float32 array, shape (num_nodes, walk_length + max_degree)
        ``[v, k - 1]`` is the diagonal entry of node v in (A D^-1)^k, 0 for an isolated
        node; the degree is clipped to 1..``max_degree``.

    Source
    ------
    Tan et al. 2023, arXiv:2211.13009. Differs: their code divides by the
    degree of isolated nodes. Powers are made for a block of nodes at a time: no matrix
    of all pairs of nodes, at a cost of num_nodes x num_edges per step.
    """
    from scipy.sparse import csr_array  # here, as most runs need none

    source, target = edge_index
    degree = np.bincount(source, minlength=num_nodes)
    # Column v of A D^-1 is where one step from v leads.
    share = (1 / degree[target]).astype(np.float32)
    walk = csr_array((share, (source, target)), shape=(num_nodes, num_nodes))
    encoding = np.zeros((num_nodes, walk_length + max_degree), np.float32)
    width = max(1, _CELLS // max(num_nodes, 1))
    for begin in range(0, num_nodes, width):
        nodes = np.arange(begin, min(begin + width, num_nodes))
        columns = np.arange(len(nodes))
        power = np.zeros((num_nodes, len(nodes)), np.float32)
        power[nodes, columns] = 1
        for k in range(walk_length):
            power = walk @ power
            encoding[nodes, k] = power[nodes, columns]
    hot = walk_length + np.clip(degree, 1, max_degree) - 1
    encoding[np.arange(num_nodes), hot] = 1
    return encoding
