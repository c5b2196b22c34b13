"""Client side of FedPer and FedSage, which differ from FedAvg in one thing each."""

from __future__ import annotations

from typing import final

from torch import nn

from fedgraph_flwr.config import RunSettings

from .models.node_gnn import SAGEConv
from .models.sharing import shared_keys
from .tasks.node_classifier import NodeClassifierClient


@final
class FedPerClient(NodeClassifierClient):
    """Sends the convolutions; the readout and its optimiser state stay."""

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:  # noqa: ARG003
        """Names of the convolutions' tensors."""
        return shared_keys(model, "convs")


@final
class FedSageClient(NodeClassifierClient):
    """FedAvg of a GraphSAGE (FedGKD, Sec. B.2); no neighbours are generated."""

    CONV = SAGEConv
