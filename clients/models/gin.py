"""GIN for graph classification with a private input and output.

Encoder: Xu et al. 2019, arXiv:1810.00826. Groups as in Xie et al. 2021 (GCFL), code
``models.py:GIN``: ``pre`` (input projection), ``convs``, ``post`` and ``readout``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from typing_extensions import override

from ..graphs.batching import Batch
from ..graphs.ops import (
    BareLinear,
    DropoutMasks,
    dropout_masks,
    linear,
    project,
    relu_dropout,
    sum_neighbours,
    sum_pool,
)
from .gin_pass import represent


class GINConv(nn.Module):
    """h_v <- MLP(h_v + sum of h_u over neighbours u), i.e. epsilon = 0, fixed."""

    def __init__(self, hidden_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            linear(hidden_dim, hidden_dim, generator),
            nn.ReLU(inplace=True),
            linear(hidden_dim, hidden_dim, generator),
        )

    @override
    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """(num_nodes, hidden) -> (num_nodes, hidden)."""
        return self.mlp(x + sum_neighbours(x, adjacency))  # type: ignore[no-any-return]


def _tensors_of(parts: Sequence[nn.Module]) -> list[Tensor] | None:
    """Weights and biases of GIN layers and of a linear one; None if any does more.

    For instance a layer of another class, or one with hooks.
    """
    if _has_any_global_hook() or GINConv.forward is not _FORWARD:  # type: ignore[no-untyped-call]
        return None
    found: list[Tensor | None] = []
    for part in parts:
        steps = [part]
        if type(part) is GINConv:
            mlp = part.mlp
            steps = [*mlp._modules.values()]
            if len(steps) != 3 or type(steps[1]) is not nn.ReLU:
                return None
            if type(mlp) is not nn.Sequential:
                return None
            if does_more(part) or does_more(mlp) or does_more(steps[1]):
                return None
        for step in steps[::2]:
            if type(step) not in _LINEAR or does_more(step):
                return None
            own = step._parameters
            found += own.get("weight"), own.get("bias")
    tensors = [t for t in found if t is not None]
    return tensors if len(tensors) == len(found) else None


_FORWARD = GINConv.forward
_LINEAR = (BareLinear, nn.Linear)


def does_more(module: nn.Module) -> bool:
    """Whether a call of a module does more than its class says."""
    own = vars(module)
    return bool(
        "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
    )


class GIN(nn.Module):
    """Graph classifier: pre -> GIN layers -> sum pooling -> post -> readout.

    Parameters
    ----------
    num_features, num_classes : int
        Widths of this client's data; may differ between clients.
    hidden_dim, num_layers : int
    dropout : float
        After each layer and after ``post``, while training.
    shared_generator, private_generator : torch.Generator
        Initialise ``convs`` and the rest; two, so that the shared start is the same
        whatever the private widths are.
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int,
        *,
        hidden_dim: int,
        num_layers: int,
        dropout: float,
        shared_generator: torch.Generator,
        private_generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.pre = linear(num_features, hidden_dim, private_generator)
        self.convs = nn.ModuleList(
            GINConv(hidden_dim, shared_generator) for _ in range(num_layers)
        )
        self.post = linear(hidden_dim, hidden_dim, private_generator)
        self.readout = linear(hidden_dim, num_classes, private_generator)

    def represent(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """(num_graphs, hidden), the input of ``readout``; dropout iff a generator."""
        x = project(batch.x, self.pre)  # (num_nodes, hidden)
        weights = _tensors_of([*self.convs, self.post])
        if weights is not None:
            masks = self._masks(x, batch, weights, generator)
            return represent(x, batch, weights, masks)
        for conv in self.convs:
            x = relu_dropout(conv(x, batch.adjacency), self.dropout, generator)
        g = sum_pool(x, batch.membership, batch.graph_of_node)  # (num_graphs, hidden)
        return relu_dropout(self.post(g), self.dropout, generator)

    def _masks(
        self,
        x: Tensor,
        batch: Batch,
        weights: Sequence[Tensor],
        generator: torch.Generator | None,
    ) -> DropoutMasks | None:
        """Draw those of all layers, in order, and of ``post``."""
        if generator is None or self.dropout == 0:
            return None
        rows = [*[len(x)] * len(self.convs), batch.num_graphs]
        widths = [len(bias) for bias in [*weights[3::4], weights[-1]]]
        shapes = zip(rows, widths, strict=True)
        like = [x.new_empty(shape) for shape in shapes]
        return dropout_masks(like, self.dropout, generator)

    @override
    def forward(self, batch: Batch, generator: torch.Generator | None) -> Tensor:
        """Logits, shape (num_graphs, num_classes); dropout iff a generator is given."""
        return self.readout(self.represent(batch, generator))  # type: ignore[no-any-return]
