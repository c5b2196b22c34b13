"""Classifiers and embedders of whole graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...graphs.batching import ClientData
from ..gin import GIN
from ..infograph import InfoGraph
from . import Architecture, Form, Generator


def _make(a: Architecture, shared: Generator, private: Generator) -> GIN:
    return GIN(
        a.num_features,
        a.num_classes,
        **a.shape(),
        shared_generator=shared,
        private_generator=private,
    )


def _outputs(model: GIN, data: ClientData, _: Mapping[str, Any]) -> Tensor:
    return torch.cat([model(batch, None) for batch in data.evaluation])


def _make_infograph(a: Architecture, shared: Generator, _: Generator) -> InfoGraph:
    return InfoGraph(
        a.num_features,
        hidden_dim=a.hidden_dim,
        num_layers=a.num_layers,
        generator=shared,
    )


def _embeddings(model: InfoGraph, data: ClientData, _: Mapping[str, Any]) -> Tensor:
    return torch.cat([model.embed(batch) for batch in data.evaluation])


FORMS = {
    "gin": Form(_make, ClientData, _outputs),
    "infograph": Form(_make_infograph, ClientData, _embeddings),
}
