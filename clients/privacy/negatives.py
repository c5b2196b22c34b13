"""FGCL's store of past noisy graphs, from which negatives are drawn.

Yang et al. 2022, Sec. III-C (3) and (4). The paper calls it a stack;
it is a queue: the oldest entry leaves first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.core.data import IntArray

from .laplace import FloatArray, Triangles

_PREFIX = "negatives/"
_NOTHING = np.zeros(0, np.float32)


@dataclass(frozen=True)
class Entry:
    """A noisy graph in the queue.

    Parameters
    ----------
    position : int
        Which of the client's graphs.
    reference : int
        Which of its view-1 draws, e.g. the round; always the same with mode ``once``.
    y : float array, shape (num_tasks,)
        Labels, NaN where not observed.
    triangle : float32 array, shape (num_pairs,)
        The noisy graph itself. Empty where ``reference`` is enough to find it.
    """

    position: int
    reference: int
    y: NDArray[np.floating]
    triangle: FloatArray


class NegativeQueue:
    """First in, first out; at most ``capacity`` entries.

    Parameters
    ----------
    capacity : int
        N of the paper's Table I.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: deque[Entry] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def positions(self) -> IntArray:
        """Client's graph of each entry, oldest first."""
        return np.array([e.position for e in self.entries], np.int64)

    def push(
        self,
        positions: IntArray,
        reference: int,
        y: NDArray[np.floating],
        views: Triangles | None = None,
    ) -> None:
        """Append graphs in order, the oldest beyond ``capacity`` leave.

        Parameters
        ----------
        positions : int64 array, shape (n,)
        reference : int
        y : float array, shape (n, num_tasks)
        views : Triangles
            Their view 1, to be kept with them where it will be drawn anew; it must
            have a graph for each position, in any order and among others.
        """
        for k, position in enumerate(positions.tolist()):
            triangle = _NOTHING if views is None else _triangle(views, position)
            self.entries.append(Entry(position, reference, y[k].copy(), triangle))

    def choose(
        self,
        positions: IntArray,
        y: NDArray[np.floating],
        k: int,
        rng: np.random.Generator,
    ) -> IntArray:
        """Draw ``k`` negatives for each graph of a batch.

        Candidates are the entries whose labels differ in at least one task observed in
        both, and that are not views of the graph itself. Drawn uniformly, with
        replacement only if there are fewer than ``k``.

        Parameters
        ----------
        positions : int64 array, shape (n,)
        y : float array, shape (n, num_tasks)
        k : int
        rng : numpy.random.Generator

        Returns
        -------
        int64 array, shape (n, k)
            Places in ``entries``; a row of -1 where there is no candidate.
        """
        chosen = np.full((len(positions), k), -1, np.int64)
        if not len(self) or not k:
            return chosen
        stored = np.stack([e.y for e in self.entries])  # (N, num_tasks)
        allowed = _differ(y[:, None], stored) & (positions[:, None] != self.positions)
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
            values=np.concatenate([_NOTHING, *(e.triangle for e in self.entries)]),
            num_nodes=num_nodes[self.positions],
            positions=self.positions,
        )

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything, as named tensors for the client's disk; nothing if empty."""
        if not len(self):
            return {}
        entries = list(self.entries)
        sizes = np.array([len(e.triangle) for e in entries], np.int64)
        reference = np.array([e.reference for e in entries], np.int64)
        arrays = {
            "position": self.positions,
            "reference": reference,
            "y": np.stack([e.y for e in entries]).astype(np.float32),
            "size": sizes,
            "triangle": np.concatenate([e.triangle for e in entries]),
        }
        return {_PREFIX + name: torch.from_numpy(a) for name, a in arrays.items()}

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], capacity: int
    ) -> NegativeQueue:
        """Restore what :meth:`to_tensors` gave, among whatever else is stored."""
        queue = cls(capacity)
        if _PREFIX + "position" not in tensors:
            return queue
        position, reference, y, size, triangle = (
            tensors[_PREFIX + name].numpy()
            for name in ("position", "reference", "y", "size", "triangle")
        )
        parts = np.split(triangle, np.cumsum(size)[:-1])
        for row in zip(position.tolist(), reference.tolist(), y, parts, strict=True):
            queue.entries.append(Entry(*row))
        return queue


def _differ(
    some: NDArray[np.floating], others: NDArray[np.floating]
) -> NDArray[np.bool_]:
    """Whether some task, observed in both, has different labels; tasks come last."""
    observed = ~np.isnan(some) & ~np.isnan(others)
    return np.asarray(((some != others) & observed).any(axis=-1))


def _triangle(views: Triangles, position: int) -> FloatArray:
    (g,) = np.flatnonzero(views.positions == position)
    ptr = views.ptr
    return views.values[ptr[g] : ptr[g + 1]].copy()
