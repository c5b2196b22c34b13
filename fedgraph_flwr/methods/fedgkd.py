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
from ..core.errors import ConfigError
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
    """Parameters of FedGKD, with the paper's symbols.

    Parameters
    ----------
    kernel : str
        What of R the attention sees: "exponential" is S = e^(tau R) (Eq. 11), "local"
        S = R, "square" S = R R (Sec. 6.2.3).
    tau, tau_s : float
        Temperatures of Eq. (11). Defaults are ours: with the paper's grid, tau up to
        1, S grows like e^(tau n) and everybody gets one client's model.
    feature_map : str
        Task features: "XH" (Eq. 7), "X", "H" or the distilled labels "y".
    distillation : str
        "dynamic", from the trained model in every round (Eq. 4), or "static", once
        before training, by matching gradients on the client's graph (App. C).
    nodes_per_class : int
        m, distilled nodes per class. Not in the paper, as the next.
    distil_steps : int
        E_d, steps of Adam per distillation.
    x0_scale : str
        Standard deviation of the start of distillation: 1 ("unit", paper) or that of
        the client's "data".
    proximal_lambda : float
        lambda of lambda ||W - W_received||^2 (Algorithm 1).
    """

    TABLE = "fedgkd"
    FIELDS = (
        Field(FEATURES, Kind.ARRAY, (Phase.TRAINING,), rest="[xhy]", what=COMPUTED),
    )

    kernel: str = choice("exponential", "local", "square", "exponential")
    tau: float = number(0.1, 0)
    tau_s: float = number(3.0, 0)
    feature_map: str = choice("XH", *FEATURE_MAPS)
    distillation: str = choice("dynamic", "dynamic", "static")
    nodes_per_class: int = integer(5, 1, 1000)
    distil_steps: int = integer(10, 0, 100_000)
    x0_scale: str = choice("unit", "unit", "data")
    proximal_lambda: float = number(1e-3, 0)

    def check(self, privacy: Settings) -> None:  # noqa: ARG002
        """Refuse to compare labels that nobody learns."""
        if self.feature_map == "y" and self.distillation == "static":
            raise ConfigError(
                "fedgkd.feature-map = 'y' compares learned labels, but"
                " fedgkd.distillation = 'static' learns none; set it to 'dynamic', or"
                " fedgkd.feature-map to another"
            )


METHOD = Method(
    params=FedGKDParams,
    strategy="strategies.fedgkd:FedGKD",
    clients={NODE_CLASSIFICATION: "clients.fedgkd:FedGKDClient"},
)
