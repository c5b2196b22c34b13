"""Adam by PyTorch's fused kernels, without the import of its compiler.

The first use of any optimiser of ``torch.optim`` imports ``torch._dynamo`` and SymPy:
a second of CPU time in each process, and at a site each message starts one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

_BETAS, _EPS = (0.9, 0.999), 1e-8  # PyTorch's defaults


class Optimizer(Protocol):
    """What a training loop needs of an optimiser; PyTorch's optimisers have it too."""

    param_groups: list[dict[str, Any]]
    state: Any

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> Any:
        """Change the parameters by their gradients."""
        ...


class FusedAdam:
    """``torch.optim.Adam(..., fused=True)`` to the bit, or AdamW, or AMSGrad.

    Parameters
    ----------
    params : iterable of tensor
        Of one device and dtype.
    lr, weight_decay : float
        Decay is added to the gradient, or with ``decoupled`` taken off the parameter.
    amsgrad, decoupled : bool
        Whether it is AMSGrad, and whether it is AdamW.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        *,
        lr: float,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        decoupled: bool = False,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(params)}]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self._kernel: Any = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self._moments = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"][: 2 + amsgrad]
        self._options: dict[str, Any] = {
            "lr": lr,
            "beta1": _BETAS[0],
            "beta2": _BETAS[1],
            "weight_decay": weight_decay,
            "eps": _EPS,
            "amsgrad": amsgrad,
            "maximize": False,
        }

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Forget the gradients."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Change the parameters that have a gradient."""
        used = [p for p in self.param_groups[0]["params"] if p.grad is not None]
        if not used:
            return
        states = [self.state.get(p) or self._begin(p) for p in used]
        moments = [[s[name] for s in states] for name in self._moments]
        moments += [[]] * (3 - len(moments))
        steps = [s["step"] for s in states]
        torch._foreach_add_(steps, 1)
        self._kernel(used, [p.grad for p in used], *moments, steps, **self._options)

    def _begin(self, parameter: Tensor) -> dict[str, Tensor]:
        zero = torch.zeros((), dtype=torch.float32, device=parameter.device)
        empty = {name: torch.zeros_like(parameter) for name in self._moments}
        self.state[parameter] = state = {"step": zero, **empty}
        return state
