"""The optimiser of local training, and its state as tensors to be stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedgraph_flwr.config import RunSettings

from .adam import FusedAdam, Optimizer

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": FusedAdam,
    "adamw": functools.partial(FusedAdam, decoupled=True),
    "amsgrad": functools.partial(FusedAdam, amsgrad=True),
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


def num_steps(optimizer: Optimizer) -> int:
    """Say how many steps an optimiser has made."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)


def join_optimizers(
    optimizers: Sequence[Optimizer], stacked: Iterable[Tensor], settings: RunSettings
) -> Optimizer:
    """Make one optimiser of stacked parameters from those of each row.

    All have made equally many steps, and have parameters in the order of ``stacked``.

    Raises
    ------
    ValueError
        Some have made a step, and others none.
    """
    parameters = list(stacked)
    made = make_optimizer(parameters, settings, {})
    rows = list(zip(*map(_parameters, optimizers), strict=True))
    for parameter, own in zip(parameters, rows, strict=True):
        states = [o.state.get(p) for o, p in zip(optimizers, own, strict=True)]
        known = [s for s in states if s]
        if 0 < len(known) < len(states):
            raise ValueError("some of the optimisers have made a step, others none")
        if known:
            made.state[parameter] = {
                name: torch.stack([s[name] for s in known]).to(parameter.device)
                for name in known[0]
                if name != "step"
            } | {"step": known[0]["step"].to(parameter.device)}
    return made


def part_optimizer(joined: Optimizer, optimizers: Sequence[Optimizer]) -> None:
    """Give each row's optimiser its rows of a stack's moments, on the host."""
    rows = list(zip(*map(_parameters, optimizers), strict=True))
    for parameter, own in zip(_parameters(joined), rows, strict=True):
        if not (state := joined.state.get(parameter)):
            continue
        step = state["step"].cpu()  # nobody counts on from it but from what is stored
        parts = {k: v.cpu().unbind() for k, v in state.items() if k != "step"}
        for k, (optimizer, row) in enumerate(zip(optimizers, own, strict=True)):
            kept = {name: part[k] for name, part in parts.items()}
            optimizer.state[row] = {"step": step, **kept}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
