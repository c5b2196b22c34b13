"""SCAFFOLD: control variates take the drift of each client out of its gradients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh 2020: *SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning*, ICML, arXiv:1910.06378. The control is ``fedavg``
with the same optimiser, which round 1 equals.

Message fields
--------------
down  ``shared/<name>``; ``control/<name>``: c, the server's control.
up    ``shared/<name>``; ``control/<name>``: by how much the client's own control has
      changed. It is a gradient of all training items, without noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import RunSettings, Settings
from ..core.errors import ConfigError
from ..core.fields import Field, Kind, Phase
from ..core.method import Method, on_every_task
from ..core.rules import choice

CONTROL = "control/"


@dataclass(frozen=True, kw_only=True)
class ScaffoldParams(Settings):
    """Parameters of SCAFFOLD: how a client renews its control.

    The paper presumes plain gradient descent (``optimizer = "sgd"``). Another optimiser
    scales the corrected gradients, which is a heuristic.
    """

    TABLE = "scaffold"
    FIELDS = (
        Field(
            CONTROL,
            Kind.ARRAY,
            (Phase.TRAINING,),
            rest=".+",
            what="gradients of all of their training items",
            consent="statistics",
        ),
    )

    control: str = choice("gradient", "gradient", "difference")
    """New control: `gradient` at the received model (option I), or the `difference`
    that training made (II), which needs `sgd`."""

    def check_shared(self, settings: RunSettings) -> None:
        """Refuse to divide by a rate that no step had."""
        is_sgd = settings.optimizer == "sgd" and settings.learning_rate > 0
        if self.control == "difference" and not is_sgd:
            raise ConfigError(
                "scaffold.control 'difference' reads gradients off the steps of plain"
                f" descent, got optimizer {settings.optimizer!r} with learning-rate"
                f" {settings.learning_rate:g}; set optimizer to 'sgd' and learning-rate"
                " above 0, or scaffold.control to 'gradient'"
            )


METHOD = Method(
    params=ScaffoldParams,
    strategy="strategies.scaffold:Scaffold",
    clients=on_every_task("clients.scaffold:Controlled"),
)
