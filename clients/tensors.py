"""Tensors of a model by name, and the arrays that come for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedgraph_flwr.errors import WireError
from fedgraph_flwr.wire import NamedArrays


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

    Parameters
    ----------
    arrays : dict of str to array
        None at all is allowed.
    expected : mapping of str to tensor
        The model's own.
    client_id : int
        For the message.

    Returns
    -------
    dict of str to array
        In the order of ``expected``.

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
    kinds = [numpy_dtype(t.dtype) for t in expected.values()]
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


@cache
def numpy_dtype(kind: torch.dtype) -> np.dtype[Any]:
    """Return the type of array that a tensor of this type becomes."""
    return torch.empty(0, dtype=kind).numpy().dtype


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
