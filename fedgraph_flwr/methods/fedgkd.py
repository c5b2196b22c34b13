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
from ..core.rules import MOST_STEP, choice, flag, integer, number
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
    kappa_start : int
        First power in the series of e^(tau R): 0, the matrix exponential, with which
        the paper's claims about self-weights hold, or 1, as Eq. (11) is printed.
    tau, tau_s : float
        Temperatures of Eq. (11). Defaults are ours: with the paper's grid, tau up to
        1, S grows like e^(tau n) and everybody gets one client's model.
    feature_map : str
        Task features: "XH" (Eq. 7), "X", "H" or the distilled labels "y".
    distillation : str
        "dynamic", from the trained model in every round (Eq. 4), or "static", once
        before training, by matching gradients on the client's graph (App. C).
    nodes_per_class : int
        m, distilled nodes per class. Not in the paper, as the next two.
    distil_steps : int
        E_d, steps of Adam per distillation.
    distil_lr : float
        Adam's step, in units of the scale of X0.
    update_labels : bool
        Whether distilled labels are learned (Algorithm 2) or stay one-hot.
    gamma : float
        Sparsity of the distilled graph (Eq. 5).
    tau_g : float
        Temperature of the Gumbel softmax (Eq. 6).
    inner_scale : str
        Inner products of Eq. (5) are divided by the square root of the number of
        features ("sqrt_d"), without which gamma has no effect, or not ("none").
    x0 : str
        Common start of distillation: drawn "each-round" (Algorithm 2) or "once".
    x0_scale : str
        Its standard deviation: 1 ("unit", paper) or that of the client's "data".
    proximal_lambda : float
        lambda of lambda ||W - W_received||^2 (Algorithm 1).
    """

    TABLE = "fedgkd"
    FIELDS = (
        Field(FEATURES, Kind.ARRAY, (Phase.TRAINING,), rest="[xhy]", what=COMPUTED),
    )

    kernel: str = choice("exponential", "local", "square", "exponential")
    kappa_start: int = integer(0, 0, 1)
    tau: float = number(0.1, 0)
    tau_s: float = number(3.0, 0)
    feature_map: str = choice("XH", *FEATURE_MAPS)
    distillation: str = choice("dynamic", "dynamic", "static")
    nodes_per_class: int = integer(5, 1, 1000)
    distil_steps: int = integer(10, 0, 100_000)
    distil_lr: float = number(0.01, 0, MOST_STEP)
    update_labels: bool = flag(True)
    gamma: float = number(0.75, 0)
    tau_g: float = number(1.0, 0, low_open=True)
    inner_scale: str = choice("sqrt_d", "sqrt_d", "none")
    x0: str = choice("each-round", "each-round", "once")
    x0_scale: str = choice("unit", "unit", "data")
    proximal_lambda: float = number(1e-3, 0)

    def check(self, privacy: Settings) -> None:  # noqa: ARG002
        """Refuse to compare labels that nobody learns."""
        if self.feature_map == "y" and not self.learns_labels:
            raise ConfigError(
                "fedgkd.feature-map = 'y' compares learned labels, but nothing learns"
                f" them with fedgkd.update-labels = {self.update_labels!r} and"
                f" fedgkd.distillation = {self.distillation!r}; set them to true and"
                " 'dynamic', or fedgkd.feature-map to another"
            )

    @property
    def learns_labels(self) -> bool:
        """Whether distilled labels move: gradient matching leaves them as they are."""
        return self.update_labels and self.distillation == "dynamic"


METHOD = Method(
    params=FedGKDParams,
    strategy="strategies.fedgkd:FedGKD",
    clients={NODE_CLASSIFICATION: "clients.fedgkd:FedGKDClient"},
)
