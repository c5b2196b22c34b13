"""Forward passes of several models at once; each tensor has the models in front.

A network is that of ``clients/models`` with the same name, to which tests compare it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, TypeVar, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from fedgraph_flwr.data import IntArray

from ..graphs.ops import (
    SparseRows,
    project_rows,
    relu_masked,
    spread,
    sum_neighbours,
    sum_pool,
)
from ..models.gin import GIN, does_more
from ..models.node_gnn import GCNConv, NodeGNN
from .batch import StackedBatch
from .masks import WORD, Masks
from .nodes import StackedNodes

B = TypeVar("B")
Named = Mapping[str, Tensor]  # of shape (C, ...)


class Network(ABC, Generic[B]):
    """Several models of one shape, without their tensors.

    Parameters
    ----------
    model : module
        Any one of them.
    """

    MODEL: ClassVar[type[nn.Module]]

    def __init__(self, model: nn.Module) -> None:
        self.dropout = float(model.dropout)  # type: ignore[arg-type]
        self.num_layers = len(model.convs)  # type: ignore[arg-type]
        self.width = int(model.readout.in_features)  # type: ignore[arg-type, union-attr]

    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        """Whether a model is one that the network computes."""
        if type(model) is not cls.MODEL:
            return False
        if _has_any_global_hook() or any(map(does_more, model.modules())):  # type: ignore[no-untyped-call]
            return False
        has_masks = model.dropout == 0 or model.readout.in_features % WORD == 0  # type: ignore[operator, union-attr]
        return bool(has_masks)

    @abstractmethod
    def mask_sizes(self, batch: B) -> Sequence[IntArray]:
        """Rows of each client in each layer that has dropout, in order."""

    @abstractmethod
    def logits(self, batch: B, named: Named, masks: Masks | None) -> Tensor:
        """Logits, shape (C, rows, num_classes); dropout iff masks are given."""


@final
class StackedGIN(Network[StackedBatch]):
    """GIN of graph classification; rows are graphs."""

    MODEL = GIN

    @override
    def mask_sizes(self, batch: StackedBatch) -> Sequence[IntArray]:
        return [batch.num_nodes] * self.num_layers + [batch.num_graphs]

    @override
    def logits(self, batch: StackedBatch, named: Named, masks: Masks | None) -> Tensor:
        h = _project(batch.x, named["pre.weight"], named["pre.bias"])  # (C, N, hidden)
        for k in range(self.num_layers):
            flat = h.flatten(0, 1)
            z = (flat + sum_neighbours(flat, batch.adjacency)).view_as(h)
            z = torch.relu(_linear(z, named, f"convs.{k}.mlp.0"))
            h = _relu(_linear(z, named, f"convs.{k}.mlp.2"), masks, k)
        g = sum_pool(h.flatten(0, 1), batch.membership, batch.graph_of_node)
        g = _linear(g.view(len(h), -1, self.width), named, "post")
        return _linear(_relu(g, masks, self.num_layers), named, "readout")


@final
class StackedGCN(Network[StackedNodes]):
    """GCN of node classification; rows are nodes."""

    MODEL = NodeGNN

    @override
    @classmethod
    def fits(cls, model: nn.Module) -> bool:
        if not super().fits(model):
            return False
        return all(type(conv) is GCNConv for conv in model.convs)  # type: ignore[union-attr]

    @override
    def mask_sizes(self, batch: StackedNodes) -> Sequence[IntArray]:
        return [batch.num_nodes] * self.num_layers

    @override
    def logits(self, batch: StackedNodes, named: Named, masks: Masks | None) -> Tensor:
        weight = named["convs.0.weight"]  # (C, hidden, num_features)
        h = self._spread(batch, _first(batch, weight), named["convs.0.bias"])
        for k in range(1, self.num_layers):
            weight = named[f"convs.{k}.weight"]
            h = torch.bmm(_relu(h, masks, k - 1), weight.transpose(1, 2))
            h = self._spread(batch, h, named[f"convs.{k}.bias"])
        return _linear(_relu(h, masks, self.num_layers - 1), named, "readout")

    def _spread(self, batch: StackedNodes, h: Tensor, bias: Tensor) -> Tensor:
        return spread(h.flatten(0, 1), batch.normalized).view_as(h) + bias[:, None]


def _linear(x: Tensor, named: Named, layer: str) -> Tensor:
    """(C, rows, num_in) -> (C, rows, num_out), each client by its own layer."""
    weight, bias = named[f"{layer}.weight"], named[f"{layer}.bias"]
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to features that may be given as one-hot column numbers."""
    if x.dim() == 3:
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
    count, _, num_features = weight.shape
    table = weight.transpose(1, 2).flatten(0, 1)  # (C * num_features, num_out)
    first = torch.arange(count, device=x.device)[:, None] * num_features
    return nn.functional.embedding(x + first, table) + bias[:, None]


def _first(batch: StackedNodes, weight: Tensor) -> Tensor:
    """Features times the first weights, without a bias."""
    if isinstance(batch.x, SparseRows):
        wide = weight.transpose(0, 1).flatten(1)  # (num_out, C * num_features)
        return project_rows(batch.x, wide).view(len(weight), -1, weight.shape[1])
    return torch.bmm(batch.x, weight.transpose(1, 2))


def _relu(x: Tensor, masks: Masks | None, layer: int) -> Tensor:
    if masks is None:
        return torch.relu(x)
    return relu_masked(x, *masks.of(layer, x))
