"""Client side of FedGMTL: own labels, and a penalty that relates all heads.

He et al. 2021 (SpreadGNN), arXiv:2106.02743, Eqs. (5) and (6).
"""

from __future__ import annotations

from typing import final

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from fedgraph_flwr.core.wire import NamedArrays, Parcel, join
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.fedgmtl import OMEGA, FedGMTLParams

from .job import Job, ModelSpec
from .models.sage_gat import MultiTaskGNN
from .multitask_gnn import MultiTaskGNNClient
from .task_covariance import (
    TaskCovariance,
    closed_form,
    covariance_record,
    initial,
    normalise,
    own_rows,
    precision,
    trace_penalty,
)


@final
class FedGMTLClient(MultiTaskGNNClient[FedGMTLParams]):
    """Masked loss + lambda tr(Phi^T Omega^-1 Phi); Omega travels with the model."""

    PER_GRAPH = True
    model: MultiTaskGNN

    @override
    @classmethod
    def build_model(cls, spec: ModelSpec[FedGMTLParams]) -> nn.Module:
        """Make the model, and Omega beside it, which starts as I / T."""
        model = super().build_model(spec)
        model.register_buffer(OMEGA, initial(range(spec.num_classes)).omega.float())
        return model

    def __init__(self, job: Job[FedGMTLParams]) -> None:
        super().__init__(job)
        partition = self.data.partition
        everything = range(partition.graphs.num_classes)
        self._own = own_rows(partition.owned_tasks, everything).to(job.device)
        self._inverse = torch.empty(0)  # follow from Omega

    @override
    def penalty(self) -> Tensor:
        """Lambda tr(Phi^T Omega^-1 Phi), which moves the client's own rows of Phi."""
        if not self.params.task_reg:
            return super().penalty()
        # In doubles: Omega may be near-singular, and Omega^-1 Phi cancels.
        phi = self.model.head.weight
        penalty = trace_penalty(phi.double(), self._inverse, self._own)
        return self.params.task_reg * penalty.to(phi.dtype)

    @override
    def epoch(self, number: int) -> Tensor:
        """Train with the received Omega, or with the closed form of the heads."""
        if number == 0:
            self.relate()
        loss = super().epoch(number)
        self._relate(closed_form(self.model.head.weight))
        return loss

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Send the trained tensors, and hand over Omega as sent, for figures."""
        sent = super().update(trained)
        return join(sent, Parcel(evaluation=self.derived(sent.arrays)))

    @override
    @classmethod
    def derived(cls, arrays: NamedArrays) -> NamedArrays:
        """Omega of the tensors that are sent, made a covariance."""
        omega = normalise(torch.from_numpy(np.array(arrays[SHARED + OMEGA])))
        return covariance_record(TaskCovariance(tuple(range(len(omega))), omega))

    def relate(self) -> None:
        """Prepare the penalty of the Omega that was received."""
        # Means of noisy updates need not be positive.
        self._relate(normalise(self._omega.detach().cpu()))

    def _relate(self, omega: Tensor) -> None:
        """Set Omega and what follows from it."""
        self._omega.copy_(omega)
        self._inverse = precision(omega).to(self._omega.device)

    @property
    def _omega(self) -> Tensor:
        return self.tensors()[OMEGA]
