"""A client's model before round 1, to be copied: drawing its tensors takes longer.

A client is made for each message, and its model with it. What that is before round 1
depends on the client's class and on the model's specification alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.kept import Kept
from fedgraph_flwr.wire import NamedArrays

_PLAIN = (type(None), bool, int, float, str)
_OF_ALL = vars(nn.Module())  # attributes that every module has
_TABLES = ("_parameters", "_buffers", "_modules")
_EMPTY = {n for n, v in _OF_ALL.items() if isinstance(v, dict) and n not in _TABLES}


@dataclass(frozen=True)
class Start:
    """A model before round 1, and the names of its tensors that travel."""

    model: nn.Module
    shared: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensors."""
        return sum(t.nbytes for t in [*self.model.parameters(), *self.model.buffers()])

    def arrays(self) -> NamedArrays:
        """Return the tensors that travel, for the server."""
        tensors = self.model.state_dict()
        return {n: tensors[n].numpy().copy() for n in self.shared}

    def private(self) -> list[str]:
        """Names of the tensors that never leave a client."""
        shared = set(self.shared)
        return [n for n in self.model.state_dict() if n not in shared]

    def copy(self) -> Start:
        """Make one with a model of its own; see :func:`is_plain`."""
        return Start(_copy(self.model, {}), self.shared)


def begin(
    starts: Kept[Start | None], key: Hashable, build: Callable[[], Start]
) -> Start:
    """Copy the start of that key, or build it, and keep a copy of it if it is plain.

    One that takes numbers from PyTorch's own generator is built each time.
    """
    built: list[Start] = []

    def first() -> Start | None:
        before = torch.get_rng_state()
        built.append(build())
        draws = not torch.equal(before, torch.get_rng_state())
        return None if draws or not is_plain(built[0].model) else built[0].copy()

    kept = starts.get(key, first)
    if built:
        return built[0]
    return build() if kept is None else kept.copy()


def is_plain(model: nn.Module) -> bool:
    """Whether a copy by ``_copy`` is certain to be another model of equal tensors.

    Attributes must be plain values, modules or tensors of their own memory, and nothing
    may be hooked: of another object nobody knows whether two models may share it.
    """
    modules = list(model.modules())
    tensors = {id(t): t for m in modules for t in _tensors(m)}.values()
    places = [t.untyped_storage().data_ptr() for t in tensors if t.numel()]
    return (
        all(map(_has_plain_attributes, modules))
        and all(map(_is_plain, tensors))
        and len(places) == len(set(places))
    )


def _has_plain_attributes(module: nn.Module) -> bool:
    if any(vars(kind).get("__slots__") for kind in type(module).__mro__):
        return False
    for name, value in vars(module).items():
        if name in _TABLES:
            if type(value) is not type(_OF_ALL[name]):
                return False
        elif name in _OF_ALL and isinstance(_OF_ALL[name], dict):  # of hooks
            if value or type(value) is not type(_OF_ALL[name]):
                return False
        elif name not in _OF_ALL and type(value) not in _PLAIN:
            return False
    return True


def _tensors(module: nn.Module) -> list[Tensor]:
    tables = module._parameters, module._buffers
    return [t for table in tables for t in table.values() if t is not None]


def _is_plain(tensor: Tensor) -> bool:
    kind, is_hooked = type(tensor), tensor._backward_hooks or vars(tensor)
    if is_hooked or getattr(tensor, "_post_accumulate_grad_hooks", None):
        return False
    is_still = kind is Tensor and not tensor.requires_grad
    return (
        (is_still or kind is nn.Parameter)
        and tensor.is_contiguous()
        and tensor.grad is None
    )


def _copy(module: nn.Module, made: dict[int, Any]) -> Any:
    """Copy a module and those in it; what occurs twice stays one (tied weights)."""
    if id(module) in made:
        return made[id(module)]
    made[id(module)] = new = object.__new__(type(module))
    own = vars(new)
    own.update(vars(module))  # plain values stay
    for name in _EMPTY & own.keys():  # hooks, of which there are none
        own[name] = type(own[name])()
    own["_non_persistent_buffers_set"] = set(own["_non_persistent_buffers_set"])
    for name in ("_parameters", "_buffers"):
        own[name] = {k: _copy_tensor(t, made) for k, t in own[name].items()}
    own["_modules"] = {
        k: None if m is None else _copy(m, made) for k, m in own["_modules"].items()
    }
    return new


def _copy_tensor(tensor: Tensor | None, made: dict[int, Any]) -> Any:
    if tensor is None or id(tensor) in made:
        return made.get(id(tensor))
    made[id(tensor)] = copied = tensor.detach().clone()
    if type(tensor) is nn.Parameter:
        made[id(tensor)] = nn.Parameter(copied, tensor.requires_grad)
    return made[id(tensor)]
