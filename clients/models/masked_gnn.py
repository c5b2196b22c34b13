"""A GCN each of whose weight matrices is multiplied by a mask of a client's own.

Baek et al. 2023, arXiv:2206.10206.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.ops import project_rows, relu_dropout
from ..graphs.whole_graph import NodeStructure
from .node_gnn import Features, GCNConv, NodeGNN

MASK_WEIGHT = 1e-3  # lambda_1: smaller entries of masks do not count in evaluation


class MaskedGNN(NodeGNN):
    """``NodeGNN`` with W * mask in the place of each weight matrix W.

    Parameters
    ----------
    *args, **kwargs
        As of ``NodeGNN``.
    threshold : float
        While evaluating, smaller entries of a mask count as 0.

    Source
    ------
    Baek et al. 2023; masks start at 1 as in the authors' scripts.
    """

    def __init__(
        self, *args: Any, threshold: float = MASK_WEIGHT, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.threshold = threshold
        matrices = [w for w in self.parameters() if w.dim() == 2]
        self.masks = nn.ParameterList(torch.ones_like(w) for w in matrices)

    def masked(self, weight: Tensor, layer: int) -> Tensor:
        """Weight matrix of a layer times its mask; layer -1 is the readout."""
        mask: Tensor = self.masks[layer]
        if not self.training:
            mask = mask.masked_fill(mask.abs() < self.threshold, 0)
        return weight * mask

    @override
    def convolve(
        self,
        x: Features,
        structure: NodeStructure,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        h: Features = x
        for layer, conv in enumerate(self.convs):
            assert isinstance(conv, GCNConv)
            if layer:
                assert isinstance(h, Tensor)
                h = relu_dropout(h, self.dropout, generator)
            weight = self.masked(conv.weight, layer)
            h = structure.propagate(project_rows(h, weight)) + conv.bias
        assert isinstance(h, Tensor)
        return h

    @override
    def read(self, h: Tensor, structure: NodeStructure) -> Tensor:
        weight = self.masked(self.readout.weight, -1)
        return nn.functional.linear(h, weight, self.readout.bias)
