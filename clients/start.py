"""A client's model before round 1, to be copied: drawing its tensors takes longer.

A client is made for each message, and its model with it. What that is before round 1
depends on the client's class and on the model's specification alone.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True)
class Start:
    """A model before round 1, and the names of its tensors that travel."""

    model: nn.Module
    shared: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensors."""
        return sum(t.nbytes for t in self.model.state_dict().values())

    def copy(self) -> Start | None:
        """Make one with a model of its own; None if that cannot be done with certainty.

        A module's attributes must be plain values, modules or tensors: of another
        object nobody knows whether two models may share it.
        """
        try:
            return Start(_copy(self.model, {}), self.shared)
        except _NotPlainError:
            return None


class _NotPlainError(Exception):
    pass


def _copy(module: nn.Module, made: dict[int, Any]) -> Any:
    """Copy a module and those in it; what occurs twice stays one (tied weights)."""
    if id(module) in made:
        return made[id(module)]
    made[id(module)] = new = object.__new__(type(module))
    own = vars(new)
    for name, value in vars(module).items():
        if type(value) in _PLAIN:
            own[name] = value
        elif name in ("_parameters", "_buffers"):
            own[name] = {k: _copy_tensor(t, made) for k, t in value.items()}
        elif name == "_modules":
            own[name] = {
                k: None if m is None else _copy(m, made) for k, m in value.items()
            }
        elif name == "_non_persistent_buffers_set":
            own[name] = set(value)
        elif type(value) in (dict, OrderedDict) and not value:  # of hooks
            own[name] = type(value)()
        else:
            raise _NotPlainError(name)
    return new


def _copy_tensor(tensor: Tensor | None, made: dict[int, Any]) -> Any:
    if tensor is None or id(tensor) in made:
        return made.get(id(tensor))
    kind = type(tensor)
    if kind not in (Tensor, nn.Parameter) or not tensor.is_leaf:
        raise _NotPlainError(kind.__name__)
    made[id(tensor)] = copied = tensor.detach().clone()
    if kind is nn.Parameter:
        made[id(tensor)] = nn.Parameter(copied, tensor.requires_grad)
    return made[id(tensor)]
