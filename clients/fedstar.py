"""Client side of FedStar for nodes: only the structure channel travels.

Tan et al. 2023, arXiv:2211.13009.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.config import RunSettings
from fedgraph_flwr.methods.fedstar import FedStarParams

from .job import Job, ModelSpec
from .models.forms import Architecture
from .models.forms.nodes import encode
from .models.star_gnn import STRUCTURE, StarGNN
from .tasks.node_classifier import NodeClassifierClient

_ENCODING = "structure/encoding"


@final
class FedStarClient(NodeClassifierClient[FedStarParams]):
    """GNN of two channels; the structure encoding is computed once and then kept."""

    model: StarGNN  # type: ignore[assignment]

    @override
    @classmethod
    def architecture(cls, spec: ModelSpec[FedStarParams]) -> Architecture:
        sizes = spec.params.walk_length, spec.params.max_degree
        options = dict(zip(("walk_length", "max_degree"), sizes, strict=True))
        return spec.architecture("star", options)

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the structure channel's tensors."""
        return [n for n in model.state_dict() if n.startswith(STRUCTURE)]

    def __init__(self, job: Job[FedStarParams]) -> None:
        super().__init__(job)
        self._made: Tensor | None = None

    @override
    def logits(self, generator: torch.Generator | None) -> Tensor:
        graph = self.graph
        return self.model(graph.features, self.encoding(), graph, generator)  # type: ignore[no-any-return]

    def encoding(self) -> Tensor:
        """Structure encoding of the client's nodes, kept from round to round."""
        if self._made is None:
            found = self.round.stored.get(_ENCODING)
            if found is None:
                found = encode(self.data, self.architecture(self.job.spec).options)
            self._made = found.to(self.job.device)
        return self._made

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """Keep the encoding."""
        return {_ENCODING: self.encoding()}
