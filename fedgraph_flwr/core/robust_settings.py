"""What a few hostile or broken clients may do to the averages of a run.

A rule replaces the mean of clients' models (``strategies.robust``); a guard fails a
client whose numbers are out of all proportion. Neither asks for the method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import RunSettings, Settings
from .errors import ConfigError
from .rules import MOST_CLIENTS, choice, integer, number
from .words import shortened

MEAN, NO_MIX = "mean", "none"
WEIGHT = "robust_weight"  # metric: a client's part of an average, times their number
_MOST_LETTERS = 1000
LEFT_OUT, _LITTLE = 0.1, 0.5  # of an equal part; a client with less is left out


@dataclass(frozen=True, kw_only=True)
class RobustSettings(Settings):
    """The rule is off by default, the guard on."""

    TABLE = "robust"

    rule: str = choice(MEAN, MEAN, "median", "trimmed", "multi-krum", "rfa", "clip")
    """How models of a round become one. All but `mean` bound what few clients can do
    to it."""
    mix: str = choice(NO_MIX, NO_MIX, "nearest", "buckets")
    """What updates become before the rule: means of the `nearest` ones, or of random
    pairs (`buckets`)."""
    hostile: int = integer(0, 0, MOST_CLIENTS)
    """How many clients of a round may send whatever they like."""
    guard: float = number(300.0, 0)
    """A client fails whose numbers are above this, and this many times the usual. 0:
    none does."""

    @property
    def is_on(self) -> bool:
        """Whether a rule replaces the mean."""
        return self.rule != MEAN

    @property
    def counts_alike(self) -> bool:
        """Whether all clients weigh the same, whatever data they claim to have."""
        return self.is_on and (self.rule != "rfa" or self.mix != NO_MIX)

    @property
    def least(self) -> int:
        """How many clients an average needs to bear ``hostile`` ones.

        More than half must be honest, also of pairs; Multi-Krum asks for 2 f + 3.
        """
        rows = 2 * self.hostile + (3 if self.rule == "multi-krum" else 1)
        return 2 * rows - 1 if self.mix == "buckets" else rows


def check_robust(robust: RobustSettings, settings: RunSettings, why_not: str) -> None:
    """Refuse a rule that the method cannot have (``why_not``), or that bears nobody."""
    name, hostile = f"robust.rule {robust.rule!r}", robust.hostile
    if not robust.is_on and (hostile or robust.mix != NO_MIX):
        raise ConfigError(
            f"robust.rule must not be {MEAN!r} with robust.hostile {hostile} and"
            f" robust.mix {robust.mix!r}, which it does not read; set robust.rule in"
            " the run config, e.g. to 'median', or leave these out"
        )
    if why_not and robust.is_on:
        raise ConfigError(
            f"robust.rule must be {MEAN!r} for {settings.method}, got {robust.rule!r}:"
            f" {why_not}; leave robust.rule out of the run config, or take a method"
            " whose server averages, e.g. fedavg"
        )
    needs_number = robust.rule in ("trimmed", "multi-krum") or robust.mix != NO_MIX
    if needs_number and not hostile:
        raise ConfigError(
            f"robust.hostile must be at least 1 for {name} with robust.mix"
            f" {robust.mix!r}, got 0; set it to the number of clients that may be"
            " hostile, or take robust.rule 'rfa' with robust.mix 'none'"
        )
    if settings.clients_per_round < robust.least:
        raise ConfigError(
            f"{name} with robust.mix {robust.mix!r} needs {robust.least} clients in a"
            f" round to bear {hostile} hostile ones, got {settings.clients_per_round};"
            " lower robust.hostile in the run config, or have more clients train"
        )


def describe_noisy(robust: RobustSettings, update_clip: float) -> tuple[str, ...]:
    """Warn of a rule that compares updates which carry noise."""
    if not (robust.is_on and update_clip > 0):
        return ()
    return (
        f"robust.rule {robust.rule!r} sees updates with noise (privacy.update-clip),"
        " which makes all of them about equally far apart: a hostile one hides in it",
    )


def describe_left(
    robust: RobustSettings, counted: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Make the summary's entry on whom a rule left out; nothing without a rule.

    ``counted``: ``rounds``, in how many it was ``left_out``, and ``mean_weight``.
    """
    if not robust.is_on:
        return {}
    low = [
        f"client {c} (left out in {of['left_out']} of {of['rounds']} rounds,"
        f" {of['mean_weight']:.2f} on average)"
        for c, of in counted.items()
        if of["left_out"] or of["mean_weight"] < _LITTLE
    ]
    mix = "" if robust.mix == NO_MIX else f" after {robust.mix}"
    says = (
        f"robust.rule {robust.rule}{mix}, robust.hostile {robust.hostile}: of an equal"
        f" part, clients had less than {LEFT_OUT:g} in a round (left out), or less than"
        f" {_LITTLE:g} on average: {shortened(', '.join(low), _MOST_LETTERS) or 'none'}"
    )
    return {"robust": {"says": says, "per_client": dict(counted)}}
