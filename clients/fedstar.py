"""Client side of FedStar for nodes: only the structure channel travels.

Tan et al. 2023, arXiv:2211.13009.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings, Settings
from fedgraph_flwr.methods.fedstar import MAX_DEGREE, WALK_LENGTH

from .graphs.structure import encode_structure
from .graphs.whole_graph import NodeData
from .job import Job, ModelSpec
from .models.star_gnn import STRUCTURE, StarGNN
from .tasks.node_classifier import NodeClassifierClient

_ENCODING = "structure/encoding"


def encode(data: NodeData) -> Tensor:
    """Encode the place of each node: (num_nodes, width), on the CPU."""
    return torch.from_numpy(
        encode_structure(
            data.partition.graphs.edge_index,
            data.whole.num_nodes,
            walk_length=WALK_LENGTH,
            max_degree=MAX_DEGREE,
        )
    )


@final
class FedStarClient(NodeClassifierClient[Settings]):
    """GNN of two channels; the structure encoding is computed once and then kept."""

    model: StarGNN  # type: ignore[assignment]

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[Settings]) -> StarGNN:
        widths = spec.num_features, WALK_LENGTH + MAX_DEGREE, spec.num_classes
        return StarGNN(*widths, **spec.shape(), generator=spec.common_generator())

    @override
    @classmethod
    def predict(cls, model: nn.Module, data: NodeData, params: Settings) -> Tensor:
        graph, encoding = data.whole, encode(data)
        logits = model(graph.features, encoding.to(graph.y.device), graph, None)
        return logits[data.held_out]  # type: ignore[no-any-return]

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        """Names of the structure channel's tensors."""
        return [n for n in model.state_dict() if n.startswith(STRUCTURE)]

    def __init__(self, job: Job[Settings]) -> None:
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
                found = encode(self.data)
            self._made = found.to(self.job.device)
        return self._made

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """Keep the encoding."""
        return {_ENCODING: self.encoding()}
