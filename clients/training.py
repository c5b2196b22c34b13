"""Batches of an epoch, the optimiser and its state, a model's tensors by name."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import IntArray
from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import NamedArrays
from fedgraph_flwr.core.words import shortened

from .graphs.batching import ClientData


@contextmanager
def as_in_a_run(threads: int) -> Iterator[None]:
    """Let torch round as it does at clients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def epoch_positions(
    train: IntArray, batch_size: int, generator: torch.Generator, *, min_batch: int = 1
) -> Iterator[IntArray]:
    """Positions of the graphs of each batch, drawn from ``generator`` (on the CPU).

    A last batch of fewer than ``min_batch`` graphs joins the one before it.
    """
    order: IntArray = torch.randperm(len(train), generator=generator).numpy()
    begins = list(range(0, len(train), batch_size))
    if len(begins) > 1 and len(train) - begins[-1] < min_batch:
        begins.pop()
    for begin, end in itertools.pairwise([*begins, len(order)]):
        yield train[order[begin:end]]


@torch.no_grad()
def evaluate(model: nn.Module, data: ClientData) -> tuple[Tensor, Tensor]:
    """Evaluate the "val", then the "test" graphs, on the device.

    Returns
    -------
    logits : tensor, shape (num_val + num_test, num_classes)
    losses : tensor, shape (num_val + num_test,)
        Cross-entropy of each graph.
    """
    logits = torch.cat([model(batch, None) for batch in data.evaluation])
    y = torch.cat([batch.y for batch in data.evaluation])
    return logits, nn.functional.cross_entropy(logits, y, reduction="none")


_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
_KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "amsgrad": functools.partial(Adam, amsgrad=True),
    "sgd": SGD,
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
    parts = {  # copies, which the optimiser changes
        w: torch.split(tensors[f"adam/{w}"].clone().to(device), sizes)
        for w in _MOMENTS
        if f"adam/{w}" in tensors
    }
    for k, parameter in enumerate(parameters):
        moments = {what: part[k].view_as(parameter) for what, part in parts.items()}
        optimizer.state[parameter] = {"step": steps[k], **moments}


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def places(
    module: nn.Module, prefix: str = ""
) -> Iterator[tuple[str, tuple[dict[str, Any], str]]]:
    """Yield name of each tensor of ``state_dict``, its module's table and its key."""
    left_out = module._non_persistent_buffers_set
    for table in (module._parameters, module._buffers):
        for key, tensor in table.items():
            if tensor is not None and key not in left_out:
                yield prefix + key, (table, key)
    for name, part in module._modules.items():
        if part is not None:
            yield from places(part, f"{prefix}{name}.")


def read_shared(
    arrays: NamedArrays, expected: Mapping[str, Tensor], *, client_id: int
) -> NamedArrays:
    """Check arrays that came for the tensors that a model shares.

    Returns them in the order of ``expected``.

    Parameters
    ----------
    arrays : dict of str to array
        None at all is allowed.
    expected : mapping of str to tensor
        The model's own.
    client_id : int
        For the message.

    Raises
    ------
    WireError
        Names, types or shapes are others, or some entry is not finite.
    """
    if not arrays:
        return {}
    if set(arrays) != set(expected):
        raise WireError(
            f"got shared arrays {sorted(arrays)}, this model shares"
            f" {sorted(expected)}; server and site run different settings"
        )
    found = {n: arrays[n] for n in expected}
    kinds = [t.new_empty(0).cpu().numpy().dtype for t in expected.values()]
    if (got := [a.dtype for a in found.values()]) != kinds:
        raise WireError(
            f"client {client_id} received arrays of types {sorted(set(map(str, got)))},"
            f" its model has {sorted(set(map(str, kinds)))}; both ends must run the"
            " same version of fedgraph_flwr"
        )
    given = [a.shape for a in found.values()]
    if given != (shapes := [tuple(t.shape) for t in expected.values()]):
        raise WireError(
            f"client {client_id} received arrays of shapes {given}, its model shares"
            f' {shapes}; shared-group = "all" needs equal features and classes'
            " everywhere"
        )
    if bad := [n for n, a in found.items() if not np.isfinite(a).all()]:
        raise WireError(
            f"client {client_id} received NaN or infinite entries in {', '.join(bad)};"
            " nobody can train from them"
        )
    return found


def read_weights(text: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Read weights of classes that the server sent as JSON.

    Raises
    ------
    WireError
        They are no finite numbers >= 0 of this shape.
    """
    try:
        found = np.array(json.loads(text), np.float64)
    except (ValueError, TypeError, RecursionError):
        found = np.full(shape, np.nan)
    if found.shape != shape or not (np.isfinite(found) & (found >= 0)).all():
        raise WireError(
            f"got weights of classes {shortened(text)}, expected finite numbers >= 0 of"
            f" shape {shape}; both ends must run the same version of fedgraph_flwr"
        )
    return found


def to_arrays(tensors: Mapping[str, Tensor]) -> NamedArrays:
    """Tensors to NumPy arrays on the host, by name."""
    return {n: t.cpu().numpy() for n, t in tensors.items()}


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()
