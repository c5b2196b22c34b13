"""Which clients of a simulation attack the others, and how: for research on rules.

An attack on updates is played by the server on replies (``strategies.attacks``); one on
data changes the training items of its clients (``datasets.poisoning``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import RunSettings, Settings
from .errors import ConfigError
from .rules import choice, client_choice, integer, named_clients, number
from .words import client_ranges

NO_ATTACK, TRIGGER = "none", "trigger"
OF_UPDATES, OF_DATA = ("sign", "scale", "noise", "ipm", "alie"), ("labels", TRIGGER)
HOSTILE = "hostile"  # point of evaluations of clients that attack
APART = "distance_from_mean"  # metric: of an honest update, in lengths of their mean
# Shares of honest test graphs outside the target class that are called target.
SUCCESS, UNTRIGGERED = "attack-success", "attack-success-without"


@dataclass(frozen=True, kw_only=True)
class AttackSettings(Settings):
    """Off by default; six keys."""

    TABLE = "attack"

    kind: str = choice(NO_ATTACK, NO_ATTACK, *OF_UPDATES, *OF_DATA)
    """What hostile clients do, in a simulation. `labels` and `trigger` change their
    training data, the others their updates."""
    clients: str = client_choice("")
    """Clients that attack. A share is drawn from `split-seed`."""
    strength: float = number(1.0, 0, low_open=True)
    """What the update of `sign`, `scale`, `noise`, `ipm`, and the offset of `alie`, is
    multiplied by."""
    target_class: int = integer(0, 0, 1_000_000)
    """`trigger`: class that graphs with the trigger are to be called."""
    poisoned: float = number(0.2, 0, 1, low_open=True)
    """`trigger`: share of a hostile client's training graphs of other classes that get
    it."""
    trigger_nodes: int = integer(4, 2, 1000)
    """`trigger`: nodes of each graph that become a clique of equal features."""

    def hostile(self, settings: RunSettings) -> frozenset[int]:
        """Clients that attack."""
        given = self.clients, settings.num_clients, settings.split_seed
        return named_clients(*given, key="attack.clients")


def check_attack(
    attack: AttackSettings, settings: RunSettings, task: str, *, averages: bool
) -> None:
    """Refuse an attack that the method, the task or the clients do not allow."""
    name = f"attack.kind {attack.kind!r}"
    if (attack.kind == NO_ATTACK) == bool(attack.clients):
        raise ConfigError(
            f"{name} and attack.clients {attack.clients!r} do not go together: an"
            " attack needs clients, and clients an attack; set both in the run config,"
            " or neither"
        )
    if not attack.clients:
        return
    if not averages:
        raise ConfigError(
            f"attack.kind must be 'none' for {settings.method}, got {attack.kind!r}:"
            " its server averages no models that it sees; leave attack.kind out of the"
            " run config, or take another method, e.g. fedavg"
        )
    fits = {"labels": "-classification", TRIGGER: "graph-classification"}
    if not task.endswith(fits.get(attack.kind, "")):
        raise ConfigError(
            f"{name} needs a task of {fits[attack.kind].strip('-')}, got {task!r}; take"
            " another attack, e.g. 'sign'"
        )
    trainers = set(range(settings.num_clients)) - settings.never_train
    if not attack.hostile(settings) < trainers:
        raise ConfigError(
            "attack.clients must be some, not all, of the clients that train"
            f" ({client_ranges(sorted(trainers))}), got {attack.clients!r}; list others"
            " in the run config"
        )


def describe_attack(
    attack: AttackSettings, settings: RunSettings, shares: Mapping[str, float]
) -> dict[str, Any]:
    """Make the summary's entry on an attack; nothing without one.

    ``shares``: ``SUCCESS`` and ``UNTRIGGERED``, means over honest clients.
    """
    if not attack.clients:
        return {}
    hostile = sorted(attack.hostile(settings))
    says = (
        f"attack.kind {attack.kind}, attack.strength {attack.strength:g}, by clients"
        f" {client_ranges(hostile)}: all scores are those of the other clients"
    )
    if shares:
        says += (
            f"; they call {shares[SUCCESS]:.3f} of their test graphs of other classes"
            f" class {attack.target_class} with the trigger in,"
            f" {shares[UNTRIGGERED]:.3f} without"
        )
    return {"attacked": {"says": says, "clients": hostile, "shares": dict(shares)}}
