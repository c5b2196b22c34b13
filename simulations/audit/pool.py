"""Trials of the audit, played by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from typing import Any

from fedgraph_flwr.rules import Value

from .game import Game, Sight, make_game
from .rows import play_here

CHUNK = 25  # trials; they travel between processes with their updates


@lru_cache(maxsize=1)
def known_game(
    overrides: tuple[tuple[str, Value], ...], graphs: int, client: int
) -> Game:
    """Make a client's game, once per process."""
    return make_game(dict(overrides), num_graphs=graphs, client_id=client)


def _play_part(
    setting: tuple[tuple[tuple[str, Value], ...], int, int],
    trials: Sequence[tuple[int, str]],
) -> list[Sight]:
    return play_here(known_game(*setting), trials)


def play_all(
    pool: ProcessPoolExecutor, setting: Any, trials: Sequence[tuple[int, str]]
) -> list[Sight]:
    """Play trials in parts, on the processes of the pool; results in order."""
    parts = [trials[k : k + CHUNK] for k in range(0, len(trials), CHUNK)]
    return [s for part in pool.map(partial(_play_part, setting), parts) for s in part]
