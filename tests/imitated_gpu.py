"""A GPU for machines without one: ``python tests/imitated_gpu.py`` runs device_check.

Tensors say that they are on ``gpu:0``. As on a GPU, an operator refuses tensors of two
devices, generators of the other device, and NumPy; a copy to the CPU is a CPU's tensor.
Numbers are those of the CPU, to the bit. What it cannot show: rounding, time, memory.

It is a process of its own, because PyTorch takes devices only before it first computes
gradients.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch._dynamo  # a mode would import it, when Generator is another already
import torch.utils.backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

torch.utils.backend_registration._setup_privateuseone_for_python_backend("gpu")
GPU, CPU = torch.device("gpu:0"), torch.device("cpu")
_aten = torch.ops.aten
# Operators that take tensors of two devices: copies, and indices that lie on the host.
_MIXED = {_aten.copy_, _aten._to_copy, _aten.index, _aten.index_put, _aten.index_put_}
_Generator, _tensor = torch.Generator, torch.tensor


class OnGpu(torch.Tensor):
    """A tensor on the imitated GPU; ``inner`` holds its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        place: dict[str, Any] = {}  # of a sparse tensor: none
        if inner.layout is torch.strided:
            place["strides"] = inner.stride()
            place["storage_offset"] = inner.storage_offset()
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=GPU, **place
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"OnGpu({self.inner!r})"

    def __getitem__(self, key: Any) -> torch.Tensor:
        return super().__getitem__(_tensor(key) if type(key) is list else key)

    def tolist(self) -> Any:
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Imitation(TorchDispatchMode):
    """Runs every operator while it is on."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class GpuGenerator(_Generator):
    """A generator that says it is on the GPU."""

    alive: dict[int, GpuGenerator] = {}  # noqa: RUF012 - by what operators know them by

    def __init__(self) -> None:
        self.alive[self._cdata] = self

    @property
    def device(self) -> torch.device:
        return GPU


class AnyGenerator(_Generator):
    """In place of ``torch.Generator``."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return _Generator() if torch.device(device) == CPU else GpuGenerator()


def tensor_on(data: Any, *, device: Any = CPU, **how: Any) -> torch.Tensor:
    """Make a tensor, in place of ``torch.tensor``, which asks no operator."""
    return _tensor(data, **how).to(device)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute an operator on the CPU, by the rules of a GPU."""
    op, leaves = func.overloadpacket, tree_leaves((args, kwargs))
    there = {id(t.inner): t for t in leaves if isinstance(t, OnGpu)}
    told = kwargs.get("device")
    on_gpu = bool(there) if told is None else torch.device(told).type == "gpu"
    if op is _aten._pin_memory:
        return args[0]
    _check(op, leaves, is_there=bool(there), on_gpu=on_gpu)
    plain, named = tree_map(
        lambda a: a.inner if isinstance(a, OnGpu) else a, (args, kwargs)
    )
    result = func(*plain, **(named if told is None else {**named, "device": CPU}))

    def placed(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, OnGpu):
            return value
        if not on_gpu:  # a copy to the CPU shares nothing
            return value.clone() if id(value) in there else value
        return there[id(value)] if id(value) in there else OnGpu(value)

    return args[0] if op is _aten.copy_ else tree_map(placed, result)


def _check(op: Any, leaves: list[Any], *, is_there: bool, on_gpu: bool) -> None:
    tensors = [a for a in leaves if isinstance(a, torch.Tensor)]
    here = [t for t in tensors if not isinstance(t, OnGpu) and t.dim() > 0]
    if is_there and here and op not in _MIXED:
        shapes = [f"{tuple(t.shape)} on {t.device}" for t in tensors]
        raise RuntimeError(f"{op}: tensors of two devices: {', '.join(shapes)}")
    for generator in (a for a in leaves if isinstance(a, _Generator)):
        if (generator._cdata in GpuGenerator.alive) != on_gpu:
            raise RuntimeError(f"{op}: the generator is of another device")


def check_rules() -> None:
    """See the imitation refuse what a GPU refuses."""
    x = torch.ones(3, 2).to(GPU)
    refused = (
        lambda: x + torch.ones(3, 2),
        lambda: torch.mm(torch.ones(2, 3), x),
        lambda: x.numpy(),
        lambda: torch.rand(2, generator=AnyGenerator(), device=GPU),
        lambda: torch.rand(2, generator=AnyGenerator(GPU)),
    )
    for number, act in enumerate(refused):
        try:
            act()
        except (RuntimeError, TypeError):
            continue
        raise AssertionError(f"rule {number} is not imitated")
    assert (x[[0, 2]] * torch.tensor(2.0)).cpu().numpy().sum() == 8


def main() -> int:
    """Compare every method on the imitated GPU with the CPU; see device_check."""
    import fedgraph_flwr.device

    choose = fedgraph_flwr.device.choose_device
    fedgraph_flwr.device.choose_device = lambda name: (
        choose(name) if name == "cpu" else GPU
    )
    from clients.stacking import buckets
    from fedgraph_flwr import together
    from simulations import device_check

    together.MOST_AT_ONCE["gpu"] = together.MOST_AT_ONCE["cuda"]
    buckets.LIMITS["gpu"] = buckets.LIMITS["cuda"]
    sets = device_check.datasets_of_all
    # With dropout: here masks are drawn alike.
    device_check.datasets_of_all = lambda folder: [
        {"num-clients": 3, "dropout": "auto", **data} for data in sets(folder)
    ]
    torch.Generator, torch.tensor = AnyGenerator, tensor_on
    with Imitation():
        check_rules()
        return device_check.main(["--device", "cuda", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
