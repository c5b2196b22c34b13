"""Classifiers of whole graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...graphs.batching import ClientData
from ..gin import GIN
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


FORMS = {
    "gin": Form(_make, ClientData, _outputs),
}
