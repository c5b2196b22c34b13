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

from .graphs.node_data import NodeData
from .graphs.ops import linear, project_rows, relu_dropout
from .graphs.structure import encode_structure
from .graphs.whole_graph import NodeStructure
from .job import Job, ModelSpec
from .models.node_gnn import Features, GCNConv
from .tasks.node_classifier import NodeClassifierClient

STRUCTURE = ("embedding_s.", "convs_s.")  # beginnings of the names of shared tensors
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
class StarGNN(nn.Module):
    """Features see the structure channel in every layer, but not the other way round.

    Parameters
    ----------
    num_features, num_encoding, num_classes, hidden_dim, num_layers : int
        ``num_encoding`` is the width of the structure encoding.
    dropout : float
        After each ReLU of the feature channel, while training.

    Source
    ------
    Tan et al. 2023, arXiv:2211.13009 and the authors' ``lib/models.py``.
    Differs: for nodes there is no pooling, and both channels convolve with GCN.
    """

    def __init__(
        self,
        num_features: int,
        num_encoding: int,
        num_classes: int,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        h, layers = hidden_dim, range(num_layers)
        self.embedding_s = linear(num_encoding, h, generator)
        self.convs_s = nn.ModuleList(GCNConv(h, h, generator) for _ in layers)
        self.pre = linear(num_features, h, generator)
        self.convs = nn.ModuleList(GCNConv(2 * h, h, generator) for _ in layers)
        self.whole = linear(2 * h, h, generator)
        self.readout = linear(h, num_classes, generator)

    @override
    def forward(
        self,
        x: Features,
        encoding: Tensor,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Logits, shape (num_nodes, num_classes); dropout iff a generator is given.

        ``encoding`` has shape (num_nodes, num_encoding).
        """
        x = project_rows(x, self.pre.weight) + self.pre.bias
        s = self.embedding_s(encoding)
        for conv, conv_s in zip(self.convs, self.convs_s, strict=True):
            both = torch.cat([x, s], 1)  # (num_nodes, 2 * hidden)
            x = relu_dropout(conv(both, structure), self.dropout, generator)
            s = torch.tanh(conv_s(s, structure))
        return self.readout(self.whole(torch.cat([x, s], 1)))  # type: ignore[no-any-return]


@final
class FedStarClient(NodeClassifierClient[Settings]):
    """GNN of two channels; the structure encoding is computed once and then kept."""

    model: StarGNN

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
        return {_ENCODING: self.encoding()}
