"""Client side of FedPer and FedSage, which differ from FedAvg in one thing each."""

from __future__ import annotations

from typing import final

from torch import nn
from typing_extensions import override

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.methods.fedavg import FedAvgParams
from fedgraph_flwr.methods.fedper import FedPerParams

from .models.node_gnn import SAGEConv
from .tasks.node_classifier import NodeClassifierClient


@final
class FedPerClient(NodeClassifierClient[FedPerParams]):
    """Sends the convolutions; the readout and its optimiser state stay."""

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the convolutions' tensors, whatever ``shared-group`` says."""
        return [n for n in model.state_dict() if n.startswith("convs.")]


@final
class FedSageClient(NodeClassifierClient[FedAvgParams]):
    """FedAvg of a GraphSAGE (FedGKD, Sec. B.2); no neighbours are generated."""

    CONV = SAGEConv
