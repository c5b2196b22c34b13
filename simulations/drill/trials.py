"""One trial of ``simulations.drill``: kill a run, resume it, compare the end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedgraph_flwr.errors import RunFailedError
from fedgraph_flwr.results.checkpoints import checkpoint_rounds
from fedgraph_flwr.results.reader import ROUNDS, load_summary
from fedgraph_flwr.rules import Value

from .targets import Target

# What a folder without any checkpoint may be refused with, and is started anew then.
_NOTHING_YET = ("no checkpoint", "config.json cannot be read", "start a new run")
NO_REASON = "Flower lost the run before the app could say anything"  # try again
_MORE_ATTEMPTS = 4
_EPS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a run is disturbed, and what is killed.

    Parameters
    ----------
    victim : str
        One of the engine's.
    share : float
        Of the length of the undisturbed run, in [0, 1).
    at_s : float
        The same in seconds.
    at_file : (int, str), optional
        Instead of a time: "before" or "after" so many files were put in place.
    """

    victim: str
    share: float
    at_s: float
    at_file: tuple[int, str] | None = None

    def __str__(self) -> str:
        if self.at_file:
            return f"{self.victim} {self.at_file[1]} file {self.at_file[0]}"
        return f"{self.victim} at {self.share:.0%}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended: "completed", "failed" or "killed"."""

    status: str
    says: str = ""
    files: int = 0  # put in place, by a run in one process
    killed: bool = False  # what a kill made of it, where the run lived on for a while

    @property
    def is_disturbed(self) -> bool:
        """Whether the drill's own kill was carried out."""
        return self.killed or self.status == "killed"


class Engine(Protocol):
    """Runs attempts of a trial, and kills them."""

    name: str
    num_rounds: int
    most_kills: int  # in one trial
    loses_runs: bool  # also undisturbed, where a busy machine misses a heartbeat

    @property
    def victims(self) -> tuple[str, ...]:
        """Kinds of processes that are killed."""
        ...

    def close(self) -> None:
        """End what still runs."""
        ...

    def attempt(
        self, config: Mapping[str, Value], moment: Moment | None, folder: Path
    ) -> Outcome:
        """Run or resume; kill at ``moment``."""
        ...

    def faults(self, folder: Path) -> list[str]:
        """Say where the privacy ledger is below what was drawn."""
        ...

    def own_reference(self, target: Target, run: Path) -> Reference | None:
        """Run undisturbed with this run's noise, if no other run has the same."""
        ...


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The undisturbed run."""

    weights: str
    rounds: str
    privacy: Mapping[str, Mapping[str, float]]
    seconds: float
    files: int


@dataclass(kw_only=True)
class Trial:
    """The result of one disturbed run."""

    number: int
    engine: str
    method: str
    kills: list[str] = field(default_factory=list)
    attempts: int = 0
    anew: int = 0
    status: str = "incomplete"
    equal_weights: bool = False
    equal_rounds: bool = False
    faults: list[str] = field(default_factory=list)
    says: str = ""

    @property
    def verdict(self) -> str:
        """Word for the table: "equal", "unequal", "lost" or "ledger"."""
        if self.faults:
            return "ledger"
        if self.status != "completed":
            return "lost"
        return "equal" if self.equal_weights and self.equal_rounds else "unequal"


def measure(engine: Engine, target: Target, folder: Path) -> Reference:
    """Run a target undisturbed.

    Raises
    ------
    RunFailedError
        It does not complete.
    """
    begin = time.monotonic()
    outcome = engine.attempt(target.config(folder), None, folder)
    seconds = time.monotonic() - begin
    if outcome.status != "completed":
        raise RunFailedError(
            f"{target.name} does not complete even undisturbed: {outcome.says}; see"
            f" {folder}"
        )
    (path,) = _folders(folder)
    summary = load_summary(path)
    return Reference(
        weights=summary["weights_sha256"],
        rounds=(path / ROUNDS).read_text(),
        privacy=spent(summary),
        seconds=seconds,
        files=outcome.files,
    )


def draw_moments(
    rng: random.Random, reference: Reference, victims: Iterable[str]
) -> list[Moment]:
    """Draw when to kill: by time, or half by file if the engine counts files."""
    found = []
    rest = 1.0  # what a resumed run has still to do
    for victim in victims:
        share = rng.random() * rest
        rest -= share
        at_file = None
        if reference.files and rng.random() < 0.5:
            at_file = 1 + int(share * reference.files), rng.choice(["before", "after"])
        at_s = share * reference.seconds
        found.append(Moment(victim=victim, share=share, at_s=at_s, at_file=at_file))
    return found


def run_trial(
    engine: Engine,
    target: Target,
    reference: Reference,
    moments: Sequence[Moment],
    *,
    number: int,
    folder: Path,
) -> Trial:
    """Kill at each moment, one attempt after the other, then let the run end.

    A run is resumed from its newest folder; where that holds nothing to go on from,
    or there is none, it is started anew.
    """
    trial = Trial(number=number, engine=engine.name, method=target.name)
    left = list(moments)
    newest: Path | None = None
    for _ in range(len(moments) + _MORE_ATTEMPTS):
        before = _folders(folder)
        config = target.config(folder)
        if newest is not None:
            config["resume"] = str(newest)
        moment = left.pop(0) if left else None
        outcome = engine.attempt(config, moment, folder)
        trial.attempts += 1
        trial.faults = engine.faults(folder)
        newest = next(iter(sorted(_folders(folder) - before)), newest)
        trial.says = outcome.says
        if moment is not None and outcome.is_disturbed:
            survived = " survived" * (outcome.status == "completed")
            trial.kills.append(f"{moment}{survived}")
        if outcome.status == "completed":
            break
        if outcome.is_disturbed or outcome.says == NO_REASON:
            continue
        if _has_nothing(newest, outcome.says):
            trial.anew, newest = trial.anew + 1, None
        elif not engine.loses_runs:
            trial.status = "refused"
            return trial
    else:
        return trial
    assert newest is not None, "a run that completes has a folder"
    compare(trial, engine.own_reference(target, newest) or reference, newest)
    return trial


def _has_nothing(path: Path | None, says: str) -> bool:
    """Whether a run was killed before it left anything to resume from."""
    if path is not None and checkpoint_rounds(path):
        return False
    return any(words in says for words in _NOTHING_YET)


def compare(trial: Trial, reference: Reference, path: Path) -> None:
    """Compare the end of a trial with the undisturbed run."""
    summary = load_summary(path)
    trial.status = str(summary["status"])
    trial.equal_weights = summary["weights_sha256"] == reference.weights
    trial.equal_rounds = (path / ROUNDS).read_text() == reference.rounds
    now = spent(summary)
    for client, values in reference.privacy.items():
        for name, value in values.items():
            told = now.get(client, {}).get(name, 0.0)
            if told < value * (1 - _EPS):
                trial.faults.append(
                    f"summary of client {client}: {name} {told:g}, undisturbed"
                    f" {value:g}"
                )


def spent(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Epsilons of a summary by client; empty if nothing is protected."""
    per_client = (summary["privacy"] or {}).get("per_client", {})
    return {
        client: {n: float(v) for n, v in values.items() if "epsilon" in n}
        for client, values in per_client.items()
    }


def _folders(folder: Path) -> set[Path]:
    results = folder / "results"
    return {path for path in results.glob("*") if path.is_dir()}
