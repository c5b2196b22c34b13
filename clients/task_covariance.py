"""Covariance of tasks: how heads of one model relate, and the penalty that uses it.

Zhang, Yeung 2010, *A Convex Formulation for Learning Task Relationships in Multi-Task
Learning*; He et al. 2021 (SpreadGNN), arXiv:2106.02743, Sec. 4.
Symbols: Phi, heads, one row per task (the paper has columns); Omega, covariance of
these tasks, symmetric, positive semi-definite, of trace 1. Computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import NamedArrays
from fedgraph_flwr.methods.multitask import RECORD, RECORD_IDS

TaskIds = Sequence[int]

JITTER = 1e-7  # added to the diagonal before Omega is inverted
MIN_EIGENVALUE = 1e-8  # of an Omega that was averaged
ETA = 0.5  # share of the closed form in a neighbourhood's update; our default


@dataclass(frozen=True)
class TaskCovariance:
    """Omega of some of the tasks.

    Parameters
    ----------
    task_ids : tuple of int
        Ascending.
    omega : float64 tensor, shape (len(task_ids), len(task_ids))
    """

    task_ids: tuple[int, ...]
    omega: Tensor

    def __post_init__(self) -> None:
        n = len(self.task_ids)
        is_square = tuple(self.omega.shape) == (n, n)
        if not is_square or list(self.task_ids) != sorted(set(self.task_ids)):
            raise WireError(
                f"a covariance of tasks {list(self.task_ids)} must be of shape"
                f" ({n}, {n}) and name each task once, ascending; got shape"
                f" {tuple(self.omega.shape)}: both ends must run the same version"
            )


def initial(task_ids: TaskIds) -> TaskCovariance:
    """I / T: no relation is known, and the penalty is an ordinary ridge."""
    n = len(task_ids)
    return TaskCovariance(tuple(task_ids), torch.eye(n, dtype=torch.float64) / n)


def closed_form(phi: Tensor) -> Tensor:
    """(Phi Phi^T)^(1/2) / tr (Phi Phi^T)^(1/2), float64; I / T if Phi (T, d) is 0.

    Of all Omega of trace 1 it has the smallest tr(Phi^T Omega^-1 Phi).

    Source
    ------
    Zhang, Yeung 2010, Eq. (13). By singular values of Phi, which the
    product with its transpose would square.
    """
    heads = phi.detach().cpu().double()
    u, singular, _ = torch.linalg.svd(heads, full_matrices=False)
    total = singular.sum()
    if not total > 0:
        return torch.eye(len(heads), dtype=torch.float64) / len(heads)
    return _symmetric((u * (singular / total)) @ u.T)


def normalise(omega: Tensor) -> Tensor:
    """Nearest symmetric matrix with eigenvalues >= 1e-8, divided by its trace."""
    values, vectors = torch.linalg.eigh(_symmetric(omega.double()))
    clipped = (vectors * values.clamp(min=MIN_EIGENVALUE)) @ vectors.T
    return _symmetric(clipped / clipped.trace())


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2


def align(covariances: Sequence[TaskCovariance], task_ids: TaskIds) -> Tensor:
    """f_align: average covariances of different sets of tasks, entry by entry.

    An entry is averaged over those covariances that have both of its tasks. Where none
    has, it is 0 off the diagonal and 1 / T on it, as in :func:`initial`. The result,
    (len(task_ids), len(task_ids)), is symmetric; eigenvalues may be negative: see
    :func:`normalise`.

    Parameters
    ----------
    covariances : sequence of TaskCovariance
        At least one, ascending by client, which fixes the rounding.
    task_ids : sequence of int
        Tasks of the result, ascending.

    Source
    ------
    SpreadGNN, Eq. (11): f_align as we read it.
    """
    wanted = np.array(task_ids, np.int64)
    total = np.zeros((len(wanted), len(wanted)))
    count = np.zeros_like(total)
    for covariance in covariances:
        _, at, there = np.intersect1d(
            wanted, covariance.task_ids, assume_unique=True, return_indices=True
        )
        omega = covariance.omega.detach().cpu().double().numpy()
        total[np.ix_(at, at)] += omega[np.ix_(there, there)]
        count[np.ix_(at, at)] += 1
    mean = torch.from_numpy(total / np.maximum(count, 1))
    known = torch.from_numpy(count > 0)
    return torch.where(known, mean, initial(task_ids).omega)


def update(
    covariances: Sequence[TaskCovariance],
    phi: Tensor,
    task_ids: TaskIds,
    *,
    eta: float = ETA,
) -> TaskCovariance:
    """(1 - eta) average of the neighbourhood's Omega + eta closed form, normalised.

    Parameters
    ----------
    covariances : sequence of TaskCovariance
        Of the neighbours and of the client itself, in ascending client order.
    phi : tensor, shape (len(task_ids), d)
        Heads of the neighbourhood's tasks ``task_ids``, ascending.
    eta : float
        In [0, 1]; 1 is the closed form alone.

    Source
    ------
    SpreadGNN, Eq. (11). Differs: the paper's weights make neighbours vanish and its
    trace differ from 1; ours keep it at 1.
    """
    mixed = eta * closed_form(phi)
    if eta < 1:
        mixed = mixed + (1 - eta) * align(covariances, task_ids)
    return TaskCovariance(tuple(task_ids), normalise(mixed))


def precision(omega: Tensor) -> Tensor:
    """(Omega + 1e-7 I)^-1 in float64, symmetric."""
    lifted = omega.detach().cpu().double()
    lifted = lifted + JITTER * torch.eye(len(lifted), dtype=torch.float64)
    return _symmetric(torch.linalg.inv(lifted))


class _Trace(torch.autograd.Function):
    """tr(Phi^T P Phi) with the gradient 2 P Phi on some rows of Phi."""

    @override
    @staticmethod
    def forward(ctx: Any, phi: Tensor, inverse: Tensor, own: Tensor | None) -> Tensor:
        related = inverse @ phi  # (T, d)
        ctx.save_for_backward(related)
        ctx.own = own
        return torch.dot(related.flatten(), phi.flatten())

    @override
    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (related,) = ctx.saved_tensors
        gradient = related * (2 * grads[0])
        if ctx.own is not None:
            gradient = gradient * ctx.own
        return gradient, None, None


def trace_penalty(phi: Tensor, inverse: Tensor, own: Tensor | None = None) -> Tensor:
    """tr(Phi^T Omega^-1 Phi), a scalar whose gradient reaches own rows of Phi only.

    Parameters
    ----------
    phi : tensor, shape (T, d)
        Heads; rows of other clients' tasks count as constants.
    inverse : tensor, shape (T, T)
        :func:`precision` of Omega, of the type of ``phi``.
    own : tensor, shape (T, 1), optional
        1 in rows with a gradient, 0 in others; None: all have one.

    Source
    ------
    SpreadGNN, Eqs. (6), (7) and, with ``own``, the client's own term of (9). Differs:
    the authors' code detaches own rows as well, which leaves no gradient at all, and
    multiplies by Omega instead of its inverse.
    """
    return _Trace.apply(phi, inverse, own)  # type: ignore[no-any-return,no-untyped-call]


def own_rows(owned: TaskIds, task_ids: TaskIds) -> Tensor:
    """Column of 1 where a task of ``task_ids`` is among ``owned``, else 0."""
    mine = set(owned)
    return torch.tensor([[float(t in mine)] for t in task_ids])


def covariance_record(covariance: TaskCovariance) -> NamedArrays:
    """Write Omega as the evaluation record of ``task_relations``."""
    return {
        RECORD: covariance.omega.cpu().numpy().astype(np.float32),
        RECORD_IDS: np.array(covariance.task_ids, np.int64),
    }
