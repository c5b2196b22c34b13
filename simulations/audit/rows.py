"""Rows of the privacy audit: a setting, every attack on it, and what that shows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedgraph_flwr.rules import Value

from .attacks import (
    Reader,
    Verdict,
    best_possible,
    bound,
    judge,
    seen_weakening,
)
from .game import Game, Sight, play

ATTACKS = ("view", "upload", "metrics")
Overrides = Mapping[str, Value]
# Rows of a method: without noise, and with. Methods that are not here have one of each.
ROWS: Mapping[str, tuple[Overrides, Mapping[str, Overrides]]] = {
    "fgcl": (
        {"fgcl.views": "clean"},
        {"Fed+Noise": {"fgcl.views": "one"}, "FGCL": {"fgcl.views": "two"}},
    )
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting, attacked.

    Parameters
    ----------
    name : str
    view_epsilon : float
        Of each view; 0 without noise.
    claimed : float
        What the client's ledger says; infinite without noise.
    bound, possible : float
        Largest advantage against any mechanism of that epsilon, and against Laplace
        noise on as many views as were drawn.
    seen : int
        With noise so many times smaller the row would be flagged, in 4 of 5 audits of
        this size; 0 if no weakening that is tried would be.
    verdicts : mapping
        By attack.
    """

    name: str
    view_epsilon: float
    claimed: float
    bound: float
    possible: float
    seen: int
    verdicts: Mapping[str, Verdict]

    @property
    def is_broken(self) -> bool:
        """Whether some attack shows a larger epsilon than claimed."""
        return any(v.epsilon > self.claimed for v in self.verdicts.values())


PlayAll = Callable[[Sequence[tuple[int, str]]], list[Sight]]


def attack(
    play_all: PlayAll,
    *,
    name: str,
    view_epsilon: float,
    is_rounded: bool,
    num_own: int,
    num_victims: int,
    level: float,
) -> Row:
    """Play the attacker's own trials and the client's, and judge every attack.

    Parameters
    ----------
    play_all : callable
        (world, name) of each trial -> what is seen of each, in that order.
    name, view_epsilon
        See :class:`Row`.
    is_rounded : bool
        Whether the client sees noisy pairs as an edge or none.
    num_own, num_victims : int
        Trials per world.
    level : float
        Of each lower bound.
    """
    split = 2 * num_own
    trials = [
        (n % 2, f"{'own' if n < split else 'victim'}/{n}")
        for n in range(split + 2 * num_victims)
    ]
    seen = play_all(trials)
    has_edge = np.array([world == 1 for world, _ in trials])
    view = np.array([s.view for s in seen])
    epsilons = seen[0].views
    target = view[:split] if epsilons else 2.0 * has_edge[:split] - 1
    scores = {"view": view} if epsilons else {}
    for what, x in (
        ("upload", np.stack([s.update for s in seen])),
        ("metrics", np.stack([s.metrics for s in seen])),
    ):
        reader = Reader(x[:split], target)
        scores[what] = np.concatenate([reader.own_scores, reader.scores(x[split:])])
    claimed = max(s.epsilon for s in seen)
    return Row(
        name=name,
        view_epsilon=view_epsilon,
        claimed=claimed,
        bound=bound(claimed),
        possible=best_possible(epsilons, is_rounded=is_rounded) if epsilons else 1.0,
        seen=seen_weakening(
            epsilons,
            claimed=claimed,
            is_rounded=is_rounded,
            num_own=num_own,
            num_victims=num_victims,
            level=level,
        ),
        verdicts={
            what: judge(
                (s[:split], has_edge[:split]),
                (s[split:], has_edge[split:]),
                level=level,
            )
            for what, s in scores.items()
        },
    )


def play_here(game: Game, trials: Iterable[tuple[int, str]]) -> list[Sight]:
    """Play trials in this process, one after the other."""
    torch.set_num_threads(1)
    memory = Path("/dev/shm")  # ledgers are flushed to the disk at every draw
    where = memory if memory.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as scratch:
        return [play(game, world, trial, Path(scratch)) for world, trial in trials]


def settings_of(
    method: str, epsilons: Sequence[float], common: Overrides
) -> list[tuple[str, float, dict[str, Value]]]:
    """Name, epsilon of a view and run-config overrides of every row; clean first."""
    clean, noisy = ROWS.get(method, ({}, {method: {}}))
    base: dict[str, Value] = {"method": method, **common}
    return [
        ("clean", 0.0, {**base, **clean}),
        *(
            (name, e, {**base, **options, "privacy.edge-epsilon": e})
            for name, options in noisy.items()
            for e in epsilons
        ),
    ]
