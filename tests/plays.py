"""Rounds of FedAvg over a grid of a test's own, without clients."""

from __future__ import annotations

import numpy as np
import toys

from strategies.fedavg import FedAvg


def play(grid, answers, *, rounds=1, before=lambda *_: None, **config):
    """Train two numbers from round 1 on, and return the strategy and its reports.

    Parameters
    ----------
    grid : Grid
    answers : callable
        From the strategy and the messages of a round to the replies.
    rounds : int
    before : callable
        Called with the grid and the number of each round before it begins.
    config : Value
        Run-config keys that differ from those of tests.
    """
    run, reports = toys.resolved(**config), []
    strategy = FedAvg(
        run.settings,
        run.params,
        experiment="e",
        observer=lambda _, report: reports.append(report),
    )
    strategy.roll_call(grid)
    strategy.initialise({"w": np.zeros(2, np.float32)})
    for number in range(1, rounds + 1):
        before(grid, number)
        messages = strategy.configure_train(number, None, None, grid)
        try:
            strategy.aggregate_train(number, answers(strategy, messages))
        finally:
            strategy.close_round()
            strategy.tell_observer()
    return strategy, reports
