"""Contrast of nodes with graphs by the Jensen-Shannon estimator of Hjelm et al. 2019.

The loss and the projection network that InfoGraph and MVGRL share.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import softplus


def jsd_loss(nodes: Tensor, graphs: Tensor, graph_of_node: Tensor) -> Tensor:
    """Tell each node's own graph from the batch's other graphs by inner products.

    With r_vg = <nodes_v, graphs_g>, and own graph g(v), the mean over all pairs with
    g != g(v) of (softplus(-r_vg) + r_vg - log 2), minus the mean over v of
    (log 2 - softplus(-r_{v g(v)})). Scores of 0 give 0. A batch of one graph has no
    pairs to average: only the second mean is left.

    Parameters
    ----------
    nodes : tensor, shape (num_nodes, d)
    graphs : tensor, shape (num_graphs, d)
    graph_of_node : int64 tensor, shape (num_nodes,)

    Returns
    -------
    tensor, shape ()

    Source: Sun et al. 2020 (InfoGraph), code ``losses.py:local_global_loss_``.
    Differs: softplus(-r) + r is computed as softplus(r), which does not cancel.
    """
    scores = nodes @ graphs.t()  # (num_nodes, num_graphs)
    own = graph_of_node.unsqueeze(1)
    present = softplus(-scores.gather(1, own)).mean() - math.log(2)
    num_nodes, num_graphs = scores.shape
    if num_graphs == 1:
        return present
    # Zeroed, not subtracted: own scores are large and would drown the others.
    absent = softplus(scores).scatter(1, own, 0.0).sum()
    return absent / (num_nodes * (num_graphs - 1)) - math.log(2) + present
