"""Which of Flower's runs did the rounds of an experiment that was resumed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import WireError
from .wording import shortened

EARLIER_RUNS = "earlier-runs"  # in the header of messages of a resumed run
_TEXT = re.compile(r"(\d{1,20}:\d{0,6}( \d{1,20}:\d{0,6})*)?")


@dataclass(frozen=True)
class Lives:
    """Flower's runs of one experiment, each with the rounds of it that count.

    Parameters
    ----------
    run : int
        Number of the run that goes on now; 0 outside of Flower.
    earlier : tuple of (int, int)
        Runs that were resumed, each with its last round that counts, which is the
        checkpoint that the next one began from; ascending.
    spared : tuple of int
        Runs whose other states are not deleted yet: the server still has a later
        checkpoint of theirs.
    """

    run: int = 0
    earlier: tuple[tuple[int, int], ...] = ()
    spared: tuple[int, ...] = ()

    def run_of(self, server_round: int) -> int:
        """Run whose state after a round counts."""
        for run, last in self.earlier:
            if server_round <= last:
                return run
        return self.run

    def to_text(self) -> str:
        """Write the other runs as ``RUN:ROUND RUN:ROUND``, those spared as ``RUN:``."""
        words = [f"{run}:{last}" for run, last in self.earlier]
        return " ".join([*words, *(f"{run}:" for run in self.spared)])

    @classmethod
    def from_text(cls, run: int, text: object) -> Lives:
        """Read what :meth:`to_text` wrote.

        Raises
        ------
        WireError
            It is no such text, or rounds do not ascend.
        """
        if isinstance(text, str) and _TEXT.fullmatch(text):
            pairs = [pair.split(":") for pair in text.split()]
            earlier = tuple((int(of), int(last)) for of, last in pairs if last)
            spared = tuple(int(of) for of, last in pairs if not last)
            rounds = [last for _, last in earlier]
            if rounds == sorted(set(rounds)):
                return cls(run, earlier, spared)
        raise WireError(
            f"{EARLIER_RUNS} must be runs of Flower and their last rounds, ascending,"
            f" or none, as in '12:4 34:8 56:', got {shortened(text)} from the server;"
            " both ends must run the same version of fedgraph_flwr"
        )
