"""Labels that spread along the edges of one graph."""

from __future__ import annotations

import torch
from torch import Tensor

from .whole_graph import NodeStructure


@torch.no_grad()
def propagate_labels(
    structure: NodeStructure,
    start: Tensor,
    labelled: Tensor,
    *,
    steps: int,
    alpha: float,
    reinforce: bool,
) -> Tensor:
    """Y <- alpha A Y + (1 - alpha) Y_0, ``steps`` times.

    Parameters
    ----------
    structure : NodeStructure
        A is D^-1/2 (A + I) D^-1/2.
    start : float tensor, shape (num_nodes, num_classes)
        Y_0.
    labelled : int64 tensor
        Nodes whose start is added once more after each step, with ``reinforce``.

    Returns
    -------
    float tensor, shape (num_nodes, num_classes)
        Rows need not sum to 1.
    """
    y = start
    for _ in range(steps):
        y = alpha * structure.propagate(y) + (1 - alpha) * start
        if reinforce:
            y[labelled] += start[labelled]
    return y
