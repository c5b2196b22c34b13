"""Client side of FedAux: a masked GCN whose nodes are pooled along a projection.

Zhuo et al. 2025, arXiv:2505.23864.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from fedgraph_flwr.methods.fedaux import FedAuxParams

from .graphs.whole_graph import NodeStructure
from .job import ModelSpec
from .models.masked_gnn import MaskedGNN
from .tasks.masked_nodes import MaskedNodeClient

_WIDE = 0.7  # from this sigma on a short series is exact
_ROWS = 1024  # of a kernel at a time
_SMALLEST = 1e-12


def pool(h: Tensor, scores: Tensor, sigma: float) -> Tensor:
    """Mean of all nodes, weighted by exp(-(s_i - s_j)^2 / sigma^2), for each node.

    Parameters
    ----------
    h : tensor, (num_nodes, width)
    scores : tensor, (num_nodes,)
        In [-1, 1].
    sigma : float
        0: the plain mean.

    Source
    ------
    Zhuo et al. 2025, Eq. 6. The kernel is not stored: for a wide one exp(2 s t /
    sigma^2) is a series of few terms, else it is made anew for blocks of rows.
    """
    if not sigma:
        return h.mean(0, keepdim=True).expand_as(h)
    if sigma >= _WIDE:
        s, wide = scores.double()[:, None], h.double()
        powers = torch.arange(_terms(sigma), device=h.device, dtype=torch.float64)
        roots = torch.exp(torch.lgamma(powers + 1) / 2)  # of factorials
        factors = torch.exp(-(s**2) / sigma**2) * (math.sqrt(2) * s / sigma) ** powers
        factors = factors / roots
        total = factors @ factors.sum(0)
        return (factors @ (factors.T @ wide) / total[:, None]).to(h.dtype)
    rows = partial(checkpoint, _pool_rows, use_reentrant=False)
    blocks = [rows(part, scores, h, sigma) for part in torch.split(scores, _ROWS)]
    return torch.cat(blocks)


def _pool_rows(rows: Tensor, scores: Tensor, h: Tensor, sigma: float) -> Tensor:
    kernel = torch.exp(-((rows[:, None] - scores) ** 2) / sigma**2)
    return kernel @ h / kernel.sum(1, keepdim=True)


def _terms(sigma: float) -> int:
    """Count terms of exp(2 s t / sigma^2) before the rest is below 1e-9."""
    count, term = 0, 1.0
    while term >= 1e-9:
        count += 1
        term *= 2 / sigma**2 / count
    return count


class AuxGNN(MaskedGNN):
    """Logits of a node from its embedding and from those that lie near it on a line.

    ``apv``, (hidden,), is the line's direction: a node lies where the cosine of its
    embedding with it says.
    """

    PARTS = 2

    def __init__(self, *args: Any, sigma: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sigma = sigma
        drawn = torch.randn(kwargs["hidden_dim"], generator=kwargs["generator"])
        self.apv = nn.Parameter(drawn)

    @override
    def read(self, h: Tensor, structure: NodeStructure) -> Tensor:
        lengths = h.norm(dim=1).clamp(min=_SMALLEST) * self.apv.norm().clamp(_SMALLEST)
        z = pool(h, h @ self.apv / lengths, self.sigma)
        return super().read(torch.cat([h, z], 1), structure)


@final
class FedAuxClient(MaskedNodeClient[FedAuxParams]):
    """Trains weights, masks and the projection together; masks stay here."""

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[FedAuxParams]) -> AuxGNN:
        widths = spec.num_features, spec.num_classes
        generator, sigma = spec.common_generator(), spec.params.sigma
        return AuxGNN(*widths, **spec.shape(), generator=generator, sigma=sigma)
