"""The optimiser of local training, and its state as tensors to be stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from fedgraph_flwr.config import RunSettings

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "amsgrad": functools.partial(Adam, amsgrad=True),
}


def make_optimizer(
    parameters: Iterable[Tensor],
    settings: RunSettings,
    stored: Mapping[str, Tensor],
) -> Optimizer:
    """Make the optimiser of the run.

    With ``persist-optimizer`` it goes on from what :func:`optimizer_tensors` returned,
    if that is among ``stored``.
    """
    optimizer = _KINDS[settings.optimizer](
        list(parameters),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    if settings.persist_optimizer:
        restore_optimizer(optimizer, stored)
    return optimizer


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Adam's moments, each flattened over all parameters in order, and its steps.

    AMSGrad has one moment more. A parameter that has had no gradient counts as at its
    start: no step, moments of 0.

    Empty before the first step. Three tensors instead of three per parameter: files
    of many small tensors take longer to write than a client takes to train.
    """
    parameters = _parameters(optimizer)
    states = [optimizer.state.get(p) for p in parameters]
    begun = next(filter(None, states), None)
    if begun is None:
        return {}
    flat = {
        f"adam/{what}": torch.cat(
            [
                (state[what] if state else torch.zeros_like(parameter)).flatten()
                for parameter, state in zip(parameters, states, strict=True)
            ]
        )
        for what in _MOMENTS
        if what in begun
    }
    no_step = torch.zeros_like(begun["step"])
    steps = [state["step"] if state else no_step for state in states]
    return {**flat, "adam/step": torch.stack(steps)}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Set what :func:`optimizer_tensors` returned; nothing if it was empty."""
    if "adam/step" not in tensors:
        return
    parameters = _parameters(optimizer)
    if not parameters:
        return
    sizes, device = [p.numel() for p in parameters], parameters[0].device
    steps = tensors["adam/step"].clone().to(device).unbind()
    parts = {
        w: torch.split(tensors[f"adam/{w}"].to(device), sizes)
        for w in _MOMENTS
        if f"adam/{w}" in tensors
    }
    for k, parameter in enumerate(parameters):
        moments = {what: part[k].view_as(parameter) for what, part in parts.items()}
        optimizer.state[parameter] = {"step": steps[k], **moments}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
