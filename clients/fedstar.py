"""Client side of FedStar for nodes: only the structure channel travels.

Tan et al. 2023, arXiv:2211.13009.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.methods.fedstar import FedStarParams

from .base import Job, common_generator
from .fedstar_encoding import encode_structure
from .models.star_gnn import STRUCTURE, StarGNN
from .tasks.node_classifier import NodeClassifierClient

_ENCODING = "structure/encoding"


@final
class FedStarClient(NodeClassifierClient):
    """The encoding of the client's graph is made once and kept with its state."""

    model: StarGNN  # type: ignore[assignment]

    @classmethod
    def build_model(  # type: ignore[override]
        cls,
        settings: RunSettings,
        params: Settings,
        *,
        num_features: int,
        num_classes: int,
        client_id: int,  # noqa: ARG003
    ) -> StarGNN:
        """See base class."""
        assert isinstance(params, FedStarParams)
        return StarGNN(
            num_features,
            params.walk_length + params.max_degree,
            num_classes,
            hidden_dim=settings.hidden_dim,
            num_layers=settings.num_layers,
            dropout=settings.dropout,
            generator=common_generator(settings),
        )

    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:  # noqa: ARG003
        """Names of the structure channel's tensors."""
        return [n for n in model.state_dict() if n.startswith(STRUCTURE)]

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._made: Tensor | None = None

    def logits(self, generator: torch.Generator | None) -> Tensor:
        """See base class."""
        graph = self.graph
        return self.model(graph.x, self.encoding(), graph, generator)  # type: ignore[no-any-return]

    def encoding(self) -> Tensor:
        """Structure encoding of the client's nodes, kept from round to round."""
        if self._made is None:
            found = self.stored.get(_ENCODING)
            self._made = (self._encode() if found is None else found).to(
                self.job.device
            )
        return self._made

    def _encode(self) -> Tensor:
        params = self.job.params
        assert isinstance(params, FedStarParams)
        graphs = self.data.partition.graphs
        encoded: Any = encode_structure(
            graphs.edge_index,
            graphs.num_nodes,
            walk_length=params.walk_length,
            max_degree=params.max_degree,
        )
        return torch.from_numpy(encoded)

    def extra_state(self) -> dict[str, Tensor]:
        """Keep the encoding."""
        return {_ENCODING: self.encoding()}
