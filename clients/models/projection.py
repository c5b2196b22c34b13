"""The projection network that InfoGraph and MVGRL share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..graphs.ops import linear


class ProjectionNetwork(nn.Module):
    """Three linear layers, an activation after each, plus a linear shortcut.

    Parameters
    ----------
    num_in, num_out : int
    activation : callable
        Makes an activation module, once per layer.
    generator : torch.Generator
    """

    def __init__(
        self,
        num_in: int,
        num_out: int,
        activation: Callable[[], nn.Module],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.block = nn.Sequential(
            linear(num_in, num_out, generator),
            activation(),
            linear(num_out, num_out, generator),
            activation(),
            linear(num_out, num_out, generator),
            activation(),
        )
        self.shortcut = linear(num_in, num_out, generator)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """(n, num_in) -> (n, num_out)."""
        return self.block(x) + self.shortcut(x)  # type: ignore[no-any-return]
