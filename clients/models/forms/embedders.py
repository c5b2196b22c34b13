"""Embedders of whole graphs, by one view of each graph or by two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.data import DiffusionSpec

from ...graphs.batching import ClientData
from ..infograph import InfoGraph
from ..mvgrl import MVGRL
from ..weighted_gin import WeightedGIN
from . import Architecture, Form, Generator


def _make_infograph(a: Architecture, shared: Generator, _: Generator) -> InfoGraph:
    return InfoGraph(
        a.num_features,
        hidden_dim=a.hidden_dim,
        num_layers=a.num_layers,
        generator=shared,
    )


def _make_mvgrl(a: Architecture, shared: Generator, _: Generator) -> MVGRL:
    _view(a.options)  # refuses what is none
    return MVGRL(
        a.num_features,
        hidden_dim=a.hidden_dim,
        num_layers=a.num_layers,
        generator=shared,
    )


def _make_weighted_gin(a: Architecture, shared: Generator, _: Generator) -> WeightedGIN:
    return WeightedGIN(
        a.num_features,
        hidden_dim=a.hidden_dim,
        num_layers=a.num_layers,
        activation=str(a.options["activation"]),
        norm=str(a.options["norm"]),
        generator=shared,
    )


def _view(options: Mapping[str, Any]) -> DiffusionSpec:
    return DiffusionSpec(**options)


def _by_infograph(model: InfoGraph, data: ClientData, _: Mapping[str, Any]) -> Tensor:
    return torch.cat([model.embed(batch) for batch in data.evaluation])


def _by_mvgrl(model: MVGRL, data: ClientData, _: Mapping[str, Any]) -> Tensor:
    view = data.view
    assert view is not None
    return torch.cat(
        [model.embed(batch, view.batch(batch.positions)) for batch in data.evaluation]
    )


def _by_weighted_gin(
    model: WeightedGIN, data: ClientData, _: Mapping[str, Any]
) -> Tensor:
    return torch.cat([model(batch) for batch in data.evaluation])


FORMS = {
    "infograph": Form(_make_infograph, ClientData, _by_infograph),
    "mvgrl": Form(_make_mvgrl, ClientData, _by_mvgrl, view=_view),
    "weighted-gin": Form(_make_weighted_gin, ClientData, _by_weighted_gin),
}
