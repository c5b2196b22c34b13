"""One client's model on the test sets of all clients: for simulation, which has them.

Nothing of it trains; nothing but a score is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from fedgraph_flwr.core.tasks import ON_ALL
from fedgraph_flwr.core.wire import Parcel, count_key, evaluation_key

from .base import GraphClient
from .graphs.batching import ClientData


@torch.no_grad()
def score_on_all(client: GraphClient[Any], everyone: Iterable[ClientData]) -> Parcel:
    """Score a client's whole model, as it is now, on the test sets of all clients.

    Parameters
    ----------
    everyone : iterable of ClientData
        Of all clients, ascending.

    Returns
    -------
    Parcel
        The metric of the client's task, its name followed by ``ON_ALL``: the mean over
        test sets, weighted by their sizes. For accuracy that is the accuracy on all
        test sets together. A test set without a score has no weight.
    """
    metric = client.job.learning.metric
    name = evaluation_key("test", "post_aggregation", metric)
    total, size = 0.0, 0
    tensors = client.tensors()
    for data in everyone:
        twin = type(client)(replace(client.job, data=data))
        for key, tensor in twin.tensors().items():
            tensor.copy_(tensors[key])
        twin.model.eval()
        found = twin.scores("post_aggregation").metrics
        if name in found:
            count = int(found[count_key("test")])
            total, size = total + count * found[name], size + count
    return Parcel(metrics={name + ON_ALL: total / size} if size else {})
