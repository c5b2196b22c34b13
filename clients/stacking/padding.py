"""Where parts of several clients lie: one behind the other, or padded to equal rows."""

from __future__ import annotations

import numpy as np

from fedgraph_flwr.data import IntArray


def begins(sizes: IntArray) -> IntArray:
    """Where each part begins, if they stand one behind the other."""
    return np.asarray(np.cumsum(sizes) - sizes)


def padded(sizes: IntArray, height: int) -> IntArray:
    """Row of each entry of parts, if each is padded to ``height`` rows."""
    within = np.arange(sizes.sum()) - np.repeat(begins(sizes), sizes)
    return within + np.repeat(np.arange(len(sizes)) * height, sizes)
