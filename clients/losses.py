"""Losses and penalties as pure functions of tensors.

Labels are a matrix (num_graphs, num_tasks) of floats, NaN where not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedgraph_flwr.core.errors import DataError


def nt_xent(u: Tensor, v: Tensor, temperature: float) -> Tensor:
    """NT-Xent between two views of the same graphs; 0 for a single graph.

    Mean over all 2B embeddings of -log of the softmax weight of the other view among
    the 2B - 1 others.

    Parameters
    ----------
    u, v : tensors, shape (B, d)
        Embeddings of a graph and of its second view, row by row.

    Source
    ------
    FCLG, Eq. (5) and (6). Differs: rows are brought to unit length, as in SimCLR. Plain
    dot products of sum-pooled embeddings, with norms of 100 and more, saturate it.
    """
    z = nn.functional.normalize(torch.cat([u, v]), dim=1)
    similarity = z @ z.t() / temperature
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    partner = torch.arange(len(z), device=z.device).roll(len(u))
    return nn.functional.cross_entropy(
        similarity.masked_fill(itself, float("-inf")), partner
    )


def distill_kl(ours: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Mean over rows of KL(softmax(teacher) || softmax(ours)) at ``temperature``.

    Source
    ------
    FCLG, Eq. (2): the expectation is under the global model.
    """
    return nn.functional.kl_div(
        torch.log_softmax(ours / temperature, 1),
        torch.log_softmax(teacher / temperature, 1),
        reduction="batchmean",
        log_target=True,
    )


def distill_mse(ours: Tensor, teacher: Tensor) -> Tensor:
    """Mean over rows of the squared distance (FCLG, Eq. 3)."""
    return (ours - teacher).square().sum(1).mean()


def info_nce(
    first: Tensor,
    second: Tensor,
    stored: Tensor,
    chosen: Tensor,
    temperature: float,
) -> Tensor:
    """InfoNCE between two views of the same graphs, with negatives from a store.

    Parameters
    ----------
    first, second : tensors, shape (n, d)
        Embeddings of views 0 and 1 of each graph, row by row.
    stored : tensor, shape (N, d)
        Embeddings of the noisy graphs in the store, encoded once for all rows.
    chosen : int64 tensor, shape (n, k)
        Rows of ``stored`` that are the negatives of each graph; a row of -1 where
        there are none: that graph's loss is 0.
    temperature : float
        tau > 0.

    Returns
    -------
    tensor, scalar
        Mean over the n graphs. With the cosine s, in
        ``[log(1 + k exp(-2 / tau)), log(1 + k exp(2 / tau))]`` if all have negatives.

    Source
    ------
    FGCL (Yang et al. 2022, arXiv:2207.11836), Eq. (6): negatives are compared with
    view 1 only.
    """
    if not chosen.numel():
        return 0.0 * first.sum()
    h0, h1 = nn.functional.normalize(first), nn.functional.normalize(second)
    positive = (h0 * h1).sum(1, keepdim=True)  # (n, 1)
    if len(stored):
        everything = h1 @ nn.functional.normalize(stored).t()  # (n, N)
        negative = everything.gather(1, chosen.clamp(min=0))  # (n, k)
    else:
        negative = positive.new_zeros(chosen.shape)
    scores = torch.cat([positive, negative], 1) / temperature
    per_graph = torch.logsumexp(scores, 1) - scores[:, 0]
    return torch.where(chosen[:, 0] >= 0, per_graph, 0.0).mean()


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


def pull(
    named: Mapping[str, Tensor], received: Mapping[str, Tensor], weight: float
) -> Tensor:
    """``weight`` ||w - w_received||^2 over trainable shared tensors; 0 if weight is 0.

    Parameters
    ----------
    named, received : mappings of str to tensor
        w, as trained so far, and w_received; ``named`` may hold further tensors.
    weight : float
        mu / 2 of FedProx (Li et al. 2020, Eq. 2); lambda of FedGKD.
    """
    if not weight:
        return torch.zeros(())
    moved = [named[n] - w for n, w in received.items() if named[n].requires_grad]
    return weight * torch.stack([m.square().sum() for m in moved]).sum()


def model_contrast(
    ours: Tensor, towards: Tensor, away: Tensor, temperature: float
) -> Tensor:
    """Pull rows of ``ours`` to those of ``towards``, push them from ``away``.

    Parameters
    ----------
    ours, towards, away : tensors, shape (n, d)
        Embeddings of the same graphs (or nodes) by the model in training and by two
        frozen ones.

    Returns
    -------
    tensor, shape (n,)
        softplus((cos(ours, away) - cos(ours, towards)) / temperature): the cross
        entropy of choosing ``towards`` of the two. log 2 where both are the same.

    Source
    ------
    Li, He, Song 2021 (MOON), Eq. (3); FCLG, Eq. (7).
    """
    similar = nn.functional.cosine_similarity(ours, towards, dim=1)
    contrary = nn.functional.cosine_similarity(ours, away, dim=1)
    return nn.functional.softplus((contrary - similar) / temperature)


Loss = Callable[[Tensor, Tensor], Tensor]


def masked_bce(logits: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Mean binary cross-entropy over the observed labels of a batch; 0 if none is.

    Parameters
    ----------
    logits, y : tensors, shape (num_graphs, num_tasks)
        ``y`` is 0, 1 or NaN. A row of NaN changes nothing.
    weights : tensor, shape (2, num_tasks), optional
        What the terms of labels 0, and of labels 1, are multiplied with.

    Source
    ------
    FGCL, Eq. (9); the mask is FedGraphNN's. Every observed label weighs the same, so a
    graph weighs by its number of labels; with batches of one graph this is Eq. (9)
    to the letter.
    """
    loss: Callable[..., Tensor] = nn.functional.binary_cross_entropy_with_logits
    if weights is not None:
        loss = partial(loss, weight=torch.where(y == 1, weights[1], weights[0]))
    return _masked(logits, y, loss)


def masked_l1(predicted: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error over the observed labels of a batch; 0 if none is."""
    return _masked(predicted, y, nn.functional.l1_loss)


def _masked(predicted: Tensor, y: Tensor, loss: Callable[..., Tensor]) -> Tensor:
    check_shapes(tuple(predicted.shape), tuple(y.shape))
    observed = ~torch.isnan(y)
    # NaN times 0 is NaN: targets are replaced, not only masked.
    each = loss(predicted, torch.where(observed, y, 0.0), reduction="none")
    return torch.where(observed, each, 0.0).sum() / observed.sum().clamp(min=1)


def check_shapes(predicted: tuple[int, ...], y: tuple[int, ...]) -> None:
    """Raise DataError unless both shapes are the same and of two axes."""
    if len(y) != 2 or predicted != y:
        raise DataError(
            "predictions and labels must both be of shape (num_graphs, num_tasks), got"
            f" {predicted} and {y}; write one task as one column"
        )
