"""Client side of Ditto: its own model, and the one that it trains for all.

Li et al. 2021, arXiv:2012.04221, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.wire import Parcel, select, with_prefix
from fedgraph_flwr.methods.ditto import DittoParams

from .mixins import Pulled
from .training import to_arrays

_GLOBAL = "global/"  # in the state: what the task's plain client goes on from


class Personal(Pulled[DittoParams]):
    """Mixin: the client's own model is trained, pulled to what came, and measured.

    What is sent comes from the task's plain client, on the same streams of draws: these
    are FedAvg's messages. Each of the two has an optimiser of its own.

    Differs: the own model starts from the one that comes first, and the pull is to
    tensors that travel.
    """

    @override
    def private_keys(self) -> list[str]:
        return list(self.tensors())

    @override
    def pull_weight(self) -> float:
        """Lambda / 2."""
        return self.params.proximal_lambda / 2

    @override
    def trained(self) -> dict[str, Tensor]:
        """Nothing: noise, if any, is for what the plain client sends."""
        return {}

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        plain = type(self).__bases__[-1](self.job)
        stored = select(_GLOBAL, self.round.stored)
        received = plain.put(to_arrays(self.round.received), stored)
        plain.round = replace(self.round, received=received, stored=stored)
        plain.train()
        sent: Parcel = plain.update(plain.trained())
        self._of_all = with_prefix(_GLOBAL, plain.to_keep())
        return sent

    @override
    def extra_state(self) -> dict[str, Tensor]:
        return self._of_all
