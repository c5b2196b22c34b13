"""``fedgraph leaks``: measure what a run tells of one client, for any method.

A client answers the message of round 1 with a secret of its own, again and again (see
:mod:`simulations.leak_game`); attackers guess the secret from what they see:

``view``: the noisy values of an edge itself. More than anyone gets who is not the
client: the best there is, and a check of the attack.
``upload``: all that the client sends, as the server sees it.
``model``: the mean of what all clients send, as the server sees it under secure
aggregation, and everyone who gets the next model. The other clients' data are drawn
anew, and attackers do not know them.
``metrics``: the numbers that the client publishes.

Secrets are one edge, the membership of one graph, shares of labels, mean features. The
exit code is 1 if of an edge or a graph more is lost than the client's ledger says; 2:
refused.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from logging import WARNING, getLogger
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.markup import escape

from fedgraph_flwr.core.errors import ConfigError, FedGraphError
from fedgraph_flwr.core.process import end_with_parent
from fedgraph_flwr.core.rules import Value, read_toml
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.resolve import defaults, resolve

from . import leak_attacks, leak_game
from .leak_attacks import Verdict
from .leak_game import ATTACKS, GAMES, Claim, Game, Setting, Sight, Trial
from .markup import consoles, paragraph, pipe_table
from .run import KeyValues, numbers, read_settings

Play = Callable[[Sequence[Trial]], list[Sight]]
Looks = Mapping[str, NDArray[Any] | None]  # by attack, a row for each trial
Verdicts = dict[str, Verdict | None]  # by attack; None if there is nothing to see
LEVEL = 0.05  # of all lower bounds of a table together
CHUNK = 25  # trials; they travel between processes with their updates
OTHERS = 48  # replies of other clients, in each half of the trials
# Protections, and rows of single methods.
ROWS: Mapping[str, Mapping[str, Any]] = read_toml(Path(__file__).with_suffix(".toml"))


class Row(NamedTuple):
    """One secret of a run, attacked."""

    name: str
    secret: str
    claim: Claim
    verdicts: Verdicts

    @property
    def shown(self) -> float:
        """Largest epsilon that an attack shows of what the ledger is about."""
        about = (self.verdicts.get(a) for a in self.claim.attacks)
        return max((v.epsilon for v in about if v), default=0.0)

    @property
    def is_broken(self) -> bool:
        """Whether some attack shows a larger epsilon than claimed."""
        return self.shown > self.claim.epsilon


class Size(NamedTuple):
    """How many trials per world, and the level of each lower bound."""

    own: int
    victims: int
    level: float


def attack(
    play: Play, game: Game, size: Size, name: str, games: Sequence[str] = GAMES
) -> list[Row]:
    """Play the attacker's own trials and the client's, and judge every attack.

    ``play`` says what is seen of each trial, in their order.
    """
    setting, rows = game.setting, list[Row]()
    others = [c for c in game.messages if c != setting.client]
    each = range(2 * max(2, OTHERS // max(1, len(others))))
    of_others = play([Trial(c, "data", 1, f"other/{n}") for c in others for n in each])
    pool = [s.update for s in of_others]
    who = ["own"] * 2 * size.own + ["victim"] * 2 * size.victims
    for which in (g for g in games if g in game.games):
        trials = [
            Trial(setting.client, which, n % 2, f"{whose}/{n}")
            for n, whose in enumerate(who)
        ]
        seen = play(trials)
        told = sorted({name for s in seen for name in s.metrics})  # some tell more
        rng = numpy_rng(game.resolved.settings.seed, "leaks", which, "others")
        looks: Looks = {
            "upload": np.stack([s.update for s in seen]),
            "model": _means(seen, pool, len(each) // 2, size, rng),
            "metrics": np.array([[s.metrics.get(n, -1.0) for n in told] for s in seen]),
        }
        for what in seen[0].secrets:
            verdicts = _guess_vectors(seen, looks, what, size, rng)
            rows.append(Row(name, what, Claim(), verdicts))
        if not seen[0].secrets:
            claim = max(s.claim for s in seen)
            verdicts = _guess_worlds(seen, looks, size, claim.delta)
            rows.append(Row(name, which, claim, verdicts))
    return rows


def _means(
    seen: Sequence[Sight],
    pool: Sequence[NDArray[np.float32]],
    half: int,
    size: Size,
    rng: np.random.Generator,
) -> NDArray[np.float32] | None:
    """Mean of the client's reply and one of each other; None if they do not add up.

    ``pool`` has twice ``half`` replies of each other client: the first are drawn for
    the attacker's own trials, the second for those of the client.
    """
    if {len(u) for u in pool} - {len(seen[0].update)}:
        return None
    first, found = np.arange(0, len(pool), 2 * half), []
    for n, sight in enumerate(seen):
        drawn = first + rng.integers(half, size=len(first)) + half * (n >= 2 * size.own)
        found.append(np.mean([sight.update, *(pool[k] for k in drawn)], axis=0))
    return np.stack(found)


def _guess_worlds(
    seen: Sequence[Sight], looks: Looks, size: Size, delta: float
) -> Verdicts:
    split, is_one = 2 * size.own, np.arange(len(seen)) % 2 == 1
    verdicts, scores = Verdicts(dict.fromkeys(looks)), dict[str, NDArray[Any]]()
    target = 2.0 * is_one - 1
    if seen[0].view is not None:
        target = scores["view"] = np.array([s.view for s in seen])
    for what, x in looks.items():
        if x is not None and x.shape[1]:
            scores[what] = leak_attacks.read(x[:split], target[:split], x[split:])
    for what, s in scores.items():
        own, victims = (s[:split], is_one[:split]), (s[split:], is_one[split:])
        verdicts[what] = leak_attacks.judge(own, victims, level=size.level, delta=delta)
    return verdicts


def _guess_vectors(
    seen: Sequence[Sight],
    looks: Looks,
    what: str,
    size: Size,
    rng: np.random.Generator,
) -> Verdicts:
    split, truth = 2 * size.own, np.stack([s.secrets[what] for s in seen])
    truth, found = truth[:, np.ptp(truth, axis=0) > 0], Verdicts(dict.fromkeys(looks))
    for look, x in looks.items():
        if x is not None and x.shape[1] and truth.shape[1]:
            learned = leak_attacks.learner(x.shape[1]).fit(x[:split], truth[:split])
            guess = learned.predict(x[split:]).reshape(len(x) - split, -1)
            constant = truth[:split].mean(axis=0)
            found[look] = leak_attacks.explained(guess, truth[split:], constant, rng)
    return found


def plan(
    base: Mapping[str, Value], epsilons: Sequence[float]
) -> dict[str, dict[str, Value]]:
    """List the settings of each run, by its name; the first is the one asked for."""
    kinds = ROWS.get(str(base["method"]), {"clean": {}, "noisy": {"noise": {}}})
    asked = {**kinds["clean"], **base}
    found = {"as asked": asked}
    found |= {name: asked | own for name, own in ROWS["protections"].items()}
    for name, own in kinds["noisy"].items():
        for e in epsilons:
            noisy = {**base, **own, "privacy.edge-epsilon": e}
            found[f"{name} on edges, epsilon {e:g}"] = noisy
    return found


def attack_all(
    runs: Mapping[str, Mapping[str, Value]],
    *,
    games: Sequence[str] = GAMES,
    client: int,
    graphs: int,
    own_trials: int,
    victims: int,
    processes: int,
) -> tuple[list[Row], list[str], float]:
    """Attack each run, by its name; the first must be one that its method takes.

    Returns rows, why there are no others, and the level of each lower bound.
    """
    size = Size(own_trials, victims, LEVEL / (len(runs) * 2 * len(ATTACKS)))
    rows, refused = list[Row](), list[str]()
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
    ) as pool:
        for name, given in runs.items():
            setting = Setting(tuple(given.items()), graphs, client)
            one = partial(leak_game.play, setting)

            def play(trials: Sequence[Trial], one: Any = one) -> list[Sight]:
                return list(pool.map(one, trials, chunksize=CHUNK))

            try:
                is_summed = resolve({**defaults(), **given}).secagg.on
                found = rows  # nothing else is computed if sums are seen alone
                if not (is_summed and rows):
                    found = attack(
                        play, leak_game.known_game(setting), size, name, games
                    )
            except FedGraphError as error:
                if not rows:
                    raise
                refused.append(f"{name}: {str(error).partition(';')[0]}.")
                continue
            rows += [_summed(row, name) for row in found] if is_summed else found
    return rows, refused, size.level


def _begin() -> None:
    """Begin a process that plays trials: each would log what a run logs once."""
    end_with_parent()
    getLogger("flwr").setLevel(WARNING)


def _summed(row: Row, name: str) -> Row:
    """See the mean in the place of what one client sends."""
    verdicts = {**row.verdicts, "upload": row.verdicts["model"]}
    return row._replace(name=name, verdicts=verdicts)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a GitHub table."""
    shown = [a for a in ATTACKS if any(a in row.verdicts for row in rows)]
    headings = ["run", "secret", "in the ledger", "bound", *shown, "epsilon >="]
    return pipe_table(pd.DataFrame([_cells(r, shown) for r in rows], columns=headings))


def _cells(row: Row, attacks: Sequence[str]) -> list[str]:
    e, delta, _ = row.claim
    says = [f"{e:.3g}", f"{leak_attacks.bound(e, delta):.2f}"]
    cells = [row.name, row.secret, *(says if np.isfinite(e) else ["", ""])]
    for what in attacks:
        v = row.verdicts.get(what)
        none = "nothing" if what in row.verdicts else ""
        cells.append(f"{v.advantage:.2f} [{v.low:.2f}, {v.high:.2f}]" if v else none)
    shown = f"{row.shown:.2f}{' **!**' * row.is_broken}"
    return [*cells, shown if row.secret in GAMES else ""]


def _notes(own_trials: int, victims: int, level: float) -> str:
    least, in_most = leak_attacks.power(victims)
    return (
        f"{victims} trials per world, {own_trials} more per world to learn from. Edge"
        " and member: advantage over guessing, of 1. Labels and features: share of the"
        " squared error of a constant guess that the attacker is rid of. In brackets"
        f" 95 % intervals. Advantages up to {least:.2f} may be chance; one of"
        f" {in_most:.2f} is shown in 80 % of all tables. Each"
        f' "epsilon >=" is wrong with probability {level:.4f} at most, all together'
        f" with {LEVEL:g}. More than {leak_attacks.most_showable(victims, level):.2f}"
        " cannot be shown with so many trials: a row whose ledger says as much cannot"
        " be flagged, whatever its noise."
    )


def leaks(
    settings: KeyValues = None,
    *,
    games: Annotated[str, typer.Option(help="What is guessed.")] = ",".join(GAMES),
    protections: Annotated[bool, typer.Option(help="Try each, too.")] = True,
    epsilons: Annotated[str, typer.Option(help="Of a view of edges.")] = "1",
    client: Annotated[int, typer.Option(help="Whose graphs.")] = 0,
    graphs: Annotated[int, typer.Option(min=1, help="That train.")] = 4,
    own: Annotated[int, typer.Option(min=20, help="The attacker's trials.")] = 200,
    victims: Annotated[int, typer.Option(min=20, help="The client's trials.")] = 200,
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> int:
    """Attack one client's privacy; 1 if more is lost than its ledger says.

    Without settings: fedavg on MUTAG.
    """
    base: dict[str, Value] = {"method": "fedavg", **read_settings(settings)}
    base.setdefault("dataset", "MUTAG")
    runs = plan(base, numbers("--epsilons", epsilons, float))
    chosen = games.split(",")
    if set(chosen) - set(GAMES):
        known = ", ".join(GAMES)
        raise ConfigError(f"--games must be some of {known}, got {games!r}")
    out, err = consoles()
    rows, refused, level = attack_all(
        runs if protections else dict([*runs.items()][:1]),
        games=chosen,
        client=client,
        graphs=graphs,
        own_trials=own,
        victims=victims,
        processes=processes,
    )
    notes = [_notes(own, victims, level), *(f"Not possible: {why}" for why in refused)]
    out.out("\n".join([*table(rows), *(f"\n{paragraph(n)}" for n in notes)]))
    broken = [row for row in rows if row.is_broken]
    for row in broken:
        what = f"{row.secret}, {row.name}"
        err.print(f"[red]more is lost than the ledger says[/red]: {escape(what)}")
    return 1 if broken else 0
