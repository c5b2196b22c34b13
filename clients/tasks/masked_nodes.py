"""A client whose weights travel and whose masks of them stay."""

from __future__ import annotations

from torch import nn
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings

from ..job import ModelSpec, P
from ..models.masked_gnn import MaskedGNN
from .node_classifier import NodeClassifierClient


class MaskedNodeClient(NodeClassifierClient[P]):
    """Trains weights and masks together, and sends the weights as they are."""

    model: MaskedGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[P]) -> MaskedGNN:
        widths = spec.num_features, spec.num_classes
        generator = spec.common_generator()
        return MaskedGNN(*widths, **spec.shape(), generator=generator)

    @override
    @classmethod
    def shared_names(cls, model: nn.Module, settings: RunSettings) -> list[str]:
        shared = super().shared_names(model, settings)
        return [n for n in shared if not n.startswith("masks.")]
