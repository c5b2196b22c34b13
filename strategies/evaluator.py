"""What the server does with what clients hand over to be evaluated: here, nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.wire import NamedArrays, Parcel, shortened

from .report import ClientInfo, Evaluation

if TYPE_CHECKING:
    from .base import AbstractGraphStrategy


class Evaluator:
    """Evaluates nothing; a task whose clients hand something over has its own."""

    def expect(self, clients: Mapping[int, ClientInfo]) -> None:
        """Learn from the roll call who takes part."""

    def misfits(
        self,
        measured_round: int,  # noqa: ARG002
        parcels: Mapping[int, Parcel],
        names: Collection[str],  # noqa: ARG002
    ) -> dict[int, str]:
        """Say which clients handed over anything but what they should.

        Parameters
        ----------
        measured_round : int
            The round whose model the clients received.
        parcels : mapping
            Replies that are good so far, by client.
        names : collection of str
            Arrays that the strategy says clients hand over. An evaluator may know the
            names itself.

        Returns
        -------
        dict of int to str
            The reason for each client whose reply must not count.
        """
        return {
            c: f"it handed over {shortened(sorted(p.evaluation))}, which nobody needs"
            for c, p in parcels.items()
            if p.evaluation
        }

    def __call__(
        self,
        measured_round: int,  # noqa: ARG002
        parcels: Mapping[int, Parcel],  # noqa: ARG002
    ) -> list[Evaluation]:
        """Scores of the model after ``measured_round``; parcels are no misfits."""
        return []

    def files(self) -> dict[str, NamedArrays]:
        """Arrays of the last call for the results folder, by the names of NPZ files.

        They are written when the round is recorded, and no sooner.
        """
        return {}

    def after_run(self, run_dir: Path, strategy: AbstractGraphStrategy) -> None:
        """Write and log what remains to be said of a completed run."""
