"""Base of evaluators, which score at the server what clients hand over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedgraph_flwr.wire import NamedArrays, Parcel
from fedgraph_flwr.wording import shortened

from .report import ClientInfo, Evaluation

if TYPE_CHECKING:
    from .base import AbstractGraphStrategy


class Evaluator:
    """Base class, which evaluates nothing; tasks with server-side scores extend it.

    ``files``: arrays of the last call for the results folder, by the names of NPZ
    files. They are written when the round is recorded, and no sooner.
    """

    def __init__(self) -> None:
        self.files: dict[str, NamedArrays] = {}

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
        """Score the model after ``measured_round``; all parcels are fit for it."""
        return []

    def after_run(self, run_dir: Path, strategy: AbstractGraphStrategy) -> None:
        """Write and log what remains to be said of a completed run."""
