"""FedGKD: personal averages by the relatedness of distilled graphs.

Pan, Wu, Liu, Zhang, Zhu, Wang 2023: *FedGKD: Unleashing the Power of Collaboration in
Federated Graph Neural Networks*. No code of the authors is known. Each client distils
a small graph from its model (Eq. 4-6); the server correlates the clients' distilled
graphs (Eq. 10), takes the matrix exponential (Eq. 11) and gives each client its own
average of all models (Eq. 8, 9).

Message fields
--------------
down  ``shared/<name>``: the client's own average; where it is to distil also
      ``fedgkd/x0``, ``fedgkd/y0`` and ``fedgkd/noise-seed``.
up    ``shared/<name>``: all trained tensors; ``fedgkd/features-<map>``: the task
      features, by default those of the distilled nodes and their embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..core.config import Settings
from ..core.fields import COMPUTED, Field, Kind, Phase
from ..core.method import Method
from ..core.rules import choice, integer, number
from ..core.tasks import NODE_CLASSIFICATION

EXTRA = "fedgkd/"
X0 = EXTRA + "x0"
Y0 = EXTRA + "y0"
NOISE_SEED = EXTRA + "noise-seed"
FEATURES = EXTRA + "features-"
# Parts of the task feature M_i (Eq. 7) by the option's name; "y": distilled labels.
FEATURE_MAPS: Mapping[str, tuple[str, ...]] = {
    "XH": ("x", "h"),
    "X": ("x",),
    "H": ("h",),
    "y": ("y",),
}


@dataclass(frozen=True, kw_only=True)
class FedGKDParams(Settings):
    """Parameters of FedGKD, with the paper's symbols."""

    TABLE = "fedgkd"
    FIELDS = (
        Field(FEATURES, Kind.ARRAY, (Phase.TRAINING,), rest="[xhy]", what=COMPUTED),
    )

    kernel: str = choice("exponential", "local", "square", "exponential")
    """How the relatedness R weighs clients: e^(tau R) (`exponential`, Eq. 11), R
    (`local`) or R R (`square`)."""
    tau: float = number(0.1, 0)
    """tau of Eq. 11. Ours: with the paper's grid, up to 1, all may get one client's
    model."""
    tau_s: float = number(3.0, 0)
    """tau_s of Eq. 11 sharpens the weights; 0: uniform."""
    feature_map: str = choice("XH", *FEATURE_MAPS)
    """Distilled features that are compared: of nodes (`X`), embeddings (`H`), both, or
    labels (`y`)."""
    nodes_per_class: int = integer(5, 1, 1000)
    """m, distilled nodes per class. Ours, as the next."""
    distil_steps: int = integer(10, 0, 100_000)
    """E_d, Adam steps of a distillation; 0 leaves the common start."""
    proximal_lambda: float = number(1e-3, 0)
    """lambda of the squared distance to the received model (Algorithm 1)."""


METHOD = Method(
    params=FedGKDParams,
    strategy="strategies.fedgkd:FedGKD",
    clients={NODE_CLASSIFICATION: "clients.fedgkd:FedGKDClient"},
)
