"""The optimiser of local training, and its state as tensors to be stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings

from .adam import FusedAdam, Optimizer

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": FusedAdam,
    "adamw": functools.partial(FusedAdam, decoupled=True),
    "amsgrad": functools.partial(FusedAdam, amsgrad=True),
}


def make_optimizer(
    model: nn.Module, settings: RunSettings, stored: Mapping[str, Tensor]
) -> Optimizer:
    """Make the optimiser of the run.

    With ``persist-optimizer`` it goes on from what :func:`optimizer_tensors` returned,
    if that is among ``stored``.
    """
    optimizer = _KINDS[settings.optimizer](
        list(model.parameters()),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    if settings.persist_optimizer:
        restore_optimizer(optimizer, stored)
    return optimizer


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Adam's moments, each flattened over all parameters in order, and its steps.

    AMSGrad has one moment more.

    Empty before the first step. Three tensors instead of three per parameter: files
    of many small tensors take longer to write than a client takes to train.
    """
    states = [optimizer.state[p] for p in _parameters(optimizer) if optimizer.state]
    if not states:
        return {}
    flat = {
        f"adam/{what}": torch.cat([state[what].flatten() for state in states])
        for what in _MOMENTS
        if what in states[0]
    }
    return {**flat, "adam/step": torch.stack([state["step"] for state in states])}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Set what :func:`optimizer_tensors` returned; nothing if it was empty."""
    if "adam/step" not in tensors:
        return
    parameters = _parameters(optimizer)
    sizes = [p.numel() for p in parameters]
    steps = tensors["adam/step"].unbind()
    parts = {
        w: torch.split(tensors[f"adam/{w}"], sizes)
        for w in _MOMENTS
        if f"adam/{w}" in tensors
    }
    for k, parameter in enumerate(parameters):
        moments = {
            what: part[k].view_as(parameter).to(parameter.device)
            for what, part in parts.items()
        }
        step = steps[k].clone().to(parameter.device)
        optimizer.state[parameter] = {"step": step, **moments}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
