"""Which tensors of a model travel."""

from __future__ import annotations

from torch import nn


def shared_keys(model: nn.Module, shared_group: str) -> list[str]:
    """Names of the tensors that travel: those of ``convs``, or all."""
    return [
        name
        for name, _ in model.named_parameters()
        if shared_group == "all" or name.startswith("convs.")
    ]
