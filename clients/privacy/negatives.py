"""FGCL's store of past noisy graphs, from which negatives are drawn.

Yang et al. 2022, Sec. III-C (3) and (4). The paper calls it a stack;
it is a queue: the oldest entry leaves first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.core.data import IntArray

from .laplace import FloatArray, Triangles

_PREFIX = "negatives/"
_NOTHING = np.zeros(0, np.float32)


class NegativeQueue:
    """First in, first out; at most ``capacity`` entries.

    ``capacity`` is N of the paper's Table I.

    Attributes
    ----------
    entries : deque of (int, float32 array)
        Which of the client's graphs, and its pairs in view 1. These are empty if views
        are drawn once, so that the number is enough to find them.
    """

    def __init__(self, capacity: int) -> None:
        self.entries: deque[tuple[int, FloatArray]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def positions(self) -> IntArray:
        """Client's graph of each entry, oldest first."""
        return np.array([position for position, _ in self.entries], np.int64)

    def push(self, positions: IntArray, views: Triangles | None = None) -> None:
        """Append graphs in order, the oldest beyond the capacity leave.

        Parameters
        ----------
        positions : int64 array, shape (n,)
        views : Triangles
            Their view 1, to be kept with them if it will be drawn anew; it must
            have a graph for each position, in any order and among others.
        """
        for position in positions.tolist():
            pairs = _NOTHING if views is None else _pairs(views, position)
            self.entries.append((position, pairs))

    def choose(
        self,
        positions: IntArray,
        y: NDArray[np.floating],
        k: int,
        rng: np.random.Generator,
    ) -> IntArray:
        """Draw ``k`` negatives for each graph of a batch.

        Candidates are the entries whose labels differ in at least one task observed in
        both. Drawn uniformly, with replacement only if there are fewer than ``k``.
        Returns places in ``entries``, shape (n, k); a row of -1 where there is no
        candidate.

        Parameters
        ----------
        positions : int64 array, shape (n,)
        y : float array, shape (num_graphs, num_tasks)
            Labels of all of the client's graphs, NaN if not observed.
        """
        chosen = np.full((len(positions), k), -1, np.int64)
        if not len(self) or not k:
            return chosen
        allowed = _differ(y[positions][:, None], y[self.positions])
        counts = allowed.sum(axis=1)
        keys = np.where(allowed, rng.random(allowed.shape), np.inf)  # (n, N)
        if len(enough := np.flatnonzero(counts >= k)):
            chosen[enough] = np.argpartition(keys[enough], k - 1, axis=1)[:, :k]
        for i in np.flatnonzero((counts > 0) & (counts < k)):
            chosen[i] = rng.choice(np.flatnonzero(allowed[i]), k)
        return chosen

    def views(self, num_nodes: IntArray) -> Triangles:
        """Noisy graphs of all entries that carry theirs, oldest first.

        Parameters
        ----------
        num_nodes : int64 array
            Of all the client's graphs.
        """
        return Triangles(
            values=np.concatenate([_NOTHING, *(pairs for _, pairs in self.entries)]),
            num_nodes=num_nodes[self.positions],
            positions=self.positions,
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything, as named tensors for the client's disk; nothing if empty."""
        if not len(self):
            return {}
        pairs = [pairs for _, pairs in self.entries]
        arrays = {
            "position": self.positions,
            "size": np.array([len(of) for of in pairs], np.int64),
            "triangle": np.concatenate(pairs),
        }
        return {_PREFIX + name: torch.from_numpy(a) for name, a in arrays.items()}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], capacity: int
    ) -> NegativeQueue:
        """Restore what :meth:`to_tensors` gave, among whatever else is stored."""
        queue = cls(capacity)
        if _PREFIX + "position" in tensors:
            position, size, triangle = (
                tensors[_PREFIX + n].numpy() for n in ("position", "size", "triangle")
            )
            pairs = np.split(triangle, np.cumsum(size)[:-1])
            queue.entries.extend(zip(position.tolist(), pairs, strict=True))
        return queue


def _differ(
    some: NDArray[np.floating], others: NDArray[np.floating]
) -> NDArray[np.bool_]:
    """Whether some task, observed in both, has different labels; tasks come last."""
    observed = ~np.isnan(some) & ~np.isnan(others)
    return np.asarray(((some != others) & observed).any(axis=-1))


def _pairs(views: Triangles, position: int) -> FloatArray:
    (g,) = np.flatnonzero(views.positions == position)
    ptr = views.ptr
    return views.values[ptr[g] : ptr[g + 1]].copy()
