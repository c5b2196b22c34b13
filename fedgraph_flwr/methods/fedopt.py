"""FedAdam and FedYogi: the server takes the mean update as a gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan 2021: *Adaptive Federated
Optimization*, ICLR, arXiv:2003.00295. Clients train as FedAvg's, which is the control.

Message fields
--------------
down, up  ``shared/<name>``, as FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.config import Settings
from ..core.method import Method
from ..core.rules import flag, number

BETA_1, BETA_2 = 0.9, 0.99  # shares of the old moments: the paper's, Sec. 5


@dataclass(frozen=True, kw_only=True)
class FedOptParams(Settings):
    """Parameters of both; tau is the paper's, Sec. 5.

    With v_0 = tau^2 a first small update Delta becomes eta (1 - beta_1) / (2 tau) times
    Delta: at 0.01 half of it.
    """

    TABLE = "fedopt"

    eta: float = number(0.01, 0)
    """Step size of the server, to be tuned. The authors try 0.001 to 10."""
    tau: float = number(1e-3, 0, low_open=True)
    """Added to the root of the second moment. A large one makes steps less adaptive."""
    flower: bool = flag(False)
    """As Flower's classes: second moments start at 0, not tau squared, and `fedadam`
    corrects its first steps."""


METHODS = {
    f"fed{rule}": Method(
        params=FedOptParams,
        strategy="strategies.fedopt:FedOpt",
        options={"rule": rule},
    )
    for rule in ("adam", "yogi")
}
