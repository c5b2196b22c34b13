"""Client side of FedGKD's control: the same local training, and nothing distilled."""

from __future__ import annotations

from typing_extensions import override

from fedgraph_flwr.methods.self_weight import SelfWeightParams

from .mixins import Pulled


class SelfWeighted(Pulled[SelfWeightParams]):
    """Mixin: sends its trained model and nothing else.

    Pan et al. 2023, Algorithm 1.
    """

    @override
    def pull_weight(self) -> float:
        """Lambda."""
        return self.params.proximal_lambda
