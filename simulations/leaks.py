"""``fedgraph leaks``: attack the privacy of edges.

A client trains on real molecules, with one bond present or not (see
:mod:`simulations.leak_game`); attackers guess which from what they see:

``view``: the noisy values of the pair itself. More than anyone gets who is not the
client: the best there is, and a check of the attack.
``upload``: the client's update, with all but the edge and the noise known. The global
model after the round is computed from uploads and tells no more.
``metrics``: the numbers that the client publishes.

An attacker turns what it sees into a score, large where it believes in the edge. It
learns the score on trials of its own (it knows everything but the edge and the noise),
fixes its thresholds there, and is then tried on trials of the client.

A guess is worth its advantage: how much oftener "edge" is said where it is there. For
any epsilon-private mechanism it is at most tanh(epsilon / 2), epsilon being what the
client's ledger says. From the rates at the best threshold follows an epsilon that the
mechanism at least has; above the ledger's it proves the ledger wrong. That is what the
exit code 1 says; 2: refused.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.markup import escape
from scipy.stats import beta
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from fedgraph_flwr.core.process import end_with_parent
from fedgraph_flwr.core.rules import Value, read_toml

from .leak_game import Floats, Setting, Sight, known_game, play_known
from .markup import consoles, pipe_table
from .run import KeyValues, numbers, read_settings

Scored = tuple[Floats, NDArray[np.bool_]]  # scores, and whether the edge was there
LEVEL = 0.05  # of all lower bounds of a table together
FOLDS = 5
PENALTIES = 10.0 ** np.arange(-6, 3)
CHUNK = 25  # trials; they travel between processes with their updates
CLIP = 4.0  # standard deviations: Adam's first step has coordinates of hardly any
ATTACKS = ("view", "upload", "metrics")
# Rows of a method: without noise, and with. Other methods have one of each.
ROWS: Mapping[str, Mapping[str, Any]] = read_toml(Path(__file__).with_suffix(".toml"))


class Verdict(NamedTuple):
    """How an attacker did."""

    advantage: float  # share of "edge" in trials with it, minus that in the others
    low: float  # 95 % interval, from Clopper-Pearson intervals of both shares
    high: float
    epsilon: float  # no mechanism with a smaller one does as badly, at the level


class Row(NamedTuple):
    """One setting, attacked; ``verdicts`` by attack."""

    name: str
    view_epsilon: float  # 0 without noise
    claimed: float  # what the client's ledger says; infinite without noise
    bound: float  # largest advantage against any mechanism of that epsilon
    verdicts: Mapping[str, Verdict]

    @property
    def is_broken(self) -> bool:
        """Whether some attack shows a larger epsilon than claimed."""
        return any(v.epsilon > self.claimed for v in self.verdicts.values())


class Size(NamedTuple):
    """How many trials per world, and the level of each lower bound."""

    own: int
    victims: int
    level: float


def read(x: Floats, target: Floats, others: Floats) -> tuple[Floats, Floats]:
    """Learn to read a number out of an update, by ridge regression; read it.

    The number is the log-likelihood ratio that the noisy view itself gives, which the
    attacker knows for trials of its own. Regression on it needs far fewer trials than
    telling the worlds apart, which differ little if noise is strong. Returns
    predictions for ``x``, each learned without its own trial, and for ``others``.

    Parameters
    ----------
    x : array, (num_trials, num_features)
    target : array, (num_trials,)
    others : array, (num_others, num_features)
    """
    model = make_pipeline(
        StandardScaler(),
        FunctionTransformer(np.clip, kw_args={"a_min": -CLIP, "a_max": CLIP}),
        RidgeCV(PENALTIES * x.shape[1]),
    )
    own = cross_val_predict(model, x, target, cv=FOLDS)
    return own, model.fit(x, target).predict(others)


def judge(own: Scored, victims: Scored, *, level: float) -> Verdict:
    """Fix thresholds on the attacker's own trials, then count on the client's.

    ``level`` is the probability with which the verdict's epsilon may exceed the truth.

    Source
    ------
    Jagielski et al. 2020, arXiv:2006.07709, Sec. 4: Clopper-Pearson bounds of both
    rates at half the level each. Differs: "no edge" may be what is guessed rightly.
    """
    thresholds = np.unique(own[0])
    (right, num_with), (wrong, num_without) = _says_edge(own, thresholds)
    best = int(np.argmax(right / num_with - wrong / num_without))
    says = _says_edge(victims, thresholds[[best]])
    tpr, fpr = (float(k[0] / num) for k, num in says)
    tpr_ends, fpr_ends = (clopper_pearson(k[0], num, 0.05 / 2) for k, num in says)
    shown = _least_epsilon(own, thresholds, level)
    guess, at = np.unravel_index(int(np.argmax(shown)), shown.shape)
    return Verdict(
        advantage=tpr - fpr,
        low=float(tpr_ends[0] - fpr_ends[1]),
        high=float(tpr_ends[1] - fpr_ends[0]),
        epsilon=float(_least_epsilon(victims, thresholds[[at]], level)[guess, 0]),
    )


def _least_epsilon(scored: Scored, thresholds: Floats, level: float) -> Floats:
    """log(p / q), at least 0; p is the share guessed rightly and q wrongly.

    Has a row for the guess "edge" at or above each threshold, one for "no edge" below.
    """
    (with_edge, n), (without, m) = _says_edge(scored, thresholds)
    found = []
    for right, num_right, wrong, num_wrong in (
        (with_edge, n, without, m),
        (m - without, m, n - with_edge, n),
    ):
        p = clopper_pearson(right, num_right, level)[0]  # missed by level / 2
        q = clopper_pearson(wrong, num_wrong, level)[1]
        found.append(np.log(np.maximum(p, q) / q))
    return np.stack(found)


def _says_edge(scored: Scored, thresholds: Floats) -> list[tuple[Floats, int]]:
    """Count the trials that score at least each threshold, and all; with edge first."""
    scores, has_edge = scored
    both = np.sort(scores[has_edge]), np.sort(scores[~has_edge])
    return [
        (len(s) - np.searchsorted(s, thresholds).astype(float), len(s)) for s in both
    ]


def clopper_pearson(
    successes: Floats | float, trials: int, level: float
) -> tuple[Floats, Floats]:
    """Exact interval of a share that is missed with probability <= ``level``.

    ``successes`` may be an array; so are the ends then.
    """
    k = np.asarray(successes, np.float64)
    low = beta.ppf(level / 2, np.maximum(k, 0.5), trials - k + 1)  # no beta for k = 0
    high = beta.ppf(1 - level / 2, k + 1, np.maximum(trials - k, 0.5))
    return np.where(k > 0, low, 0.0), np.where(k < trials, high, 1.0)


def most_showable(trials: int, level: float) -> float:
    """Lower bound that a faultless attack on ``trials`` per world would give."""
    p, q = (clopper_pearson(k, trials, level) for k in (trials, 0))
    return float(np.log(p[0] / q[1]))


def bound(epsilon: float) -> float:
    """Largest advantage against any epsilon-private mechanism: tanh(epsilon / 2)."""
    return float(np.tanh(epsilon / 2))


def attack(
    play: Callable[[Sequence[tuple[int, str]]], list[Sight]],
    size: Size,
    name: str,
    view_epsilon: float,
) -> Row:
    """Play the attacker's own trials and the client's, and judge every attack.

    Parameters
    ----------
    play : callable
        (world, name) of each trial -> what is seen of each, in that order.
    name, view_epsilon
        See :class:`Row`.
    """
    split = 2 * size.own
    trials = [
        (n % 2, f"{'own' if n < split else 'victim'}/{n}")
        for n in range(split + 2 * size.victims)
    ]
    seen = play(trials)
    has_edge = np.array([world == 1 for world, _ in trials])
    view = np.array([s.view for s in seen])
    claimed = max(s.epsilon for s in seen)
    target = view[:split] if seen[0].views else 2.0 * has_edge[:split] - 1
    scores = {"view": view} if seen[0].views else {}
    for what in ("update", "metrics"):
        x = np.stack([getattr(s, what) for s in seen])
        both = np.concatenate(read(x[:split], target, x[split:]))
        scores["upload" if what == "update" else what] = both

    def verdict(s: Floats) -> Verdict:
        own, victims = (s[:split], has_edge[:split]), (s[split:], has_edge[split:])
        return judge(own, victims, level=size.level)

    return Row(
        name=name,
        view_epsilon=view_epsilon,
        claimed=claimed,
        bound=bound(claimed),
        verdicts={what: verdict(s) for what, s in scores.items()},
    )


def attack_all(
    base: Mapping[str, Value],
    epsilons: Sequence[float],
    *,
    client: int,
    graphs: int,
    own_trials: int,
    victims: int,
    processes: int,
) -> tuple[list[Row], float]:
    """Attack every setting asked for; rows, and the level of each lower bound.

    ``base`` are keys of the run config, with the method.
    """
    method = str(base["method"])
    kinds = ROWS.get(method, {"clean": {}, "noisy": {method: {}}})
    plan = [("clean", 0.0, kinds["clean"])]
    for name, own in kinds["noisy"].items():
        plan += [(name, e, {**own, "privacy.edge-epsilon": e}) for e in epsilons]
    size = Size(own_trials, victims, LEVEL / (len(plan) * len(ATTACKS)))
    rows = []
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=end_with_parent,
    ) as pool:
        for name, epsilon, own in plan:
            given = tuple({**base, **own}.items())
            setting = Setting(given, graphs, client)
            known_game(setting)  # refused before any trial

            def play(trials: Any, setting: Setting = setting) -> list[Sight]:
                one = partial(play_known, setting)
                return list(pool.map(one, trials, chunksize=CHUNK))

            rows.append(attack(play, size, name, epsilon))
    return rows, size.level


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a GitHub table."""
    headings = ["run", "epsilon of a view", "in the ledger", "bound"]
    headings += [f"{a}{w}" for a in ATTACKS for w in ("", ": epsilon >=")]
    return pipe_table(pd.DataFrame(map(_cells, rows), columns=headings))


def _cells(row: Row) -> list[str]:
    cells = [row.name, f"{row.view_epsilon:g}" if row.view_epsilon else "none"]
    cells += [f"{row.claimed:g}", f"{row.bound:.4f}"]
    for what in ATTACKS:
        if v := row.verdicts.get(what):
            mark = " **!**" if v.epsilon > row.claimed else ""
            cells.append(f"{v.advantage:.3f} [{v.low:.3f}, {v.high:.3f}]")
            cells.append(f"{v.epsilon:.2f}{mark}")
        else:
            cells += ["", ""]
    return cells


def _notes(own_trials: int, victims: int, level: float) -> str:
    most = most_showable(victims, level)
    return (
        f"{victims} trials per world, {own_trials} more per world to learn"
        ' from. In brackets 95 % intervals; each "epsilon >=" is wrong with'
        f" probability {level:.4f} at most, all together with {LEVEL:g}. More than"
        f" {most:.2f} cannot be shown with so many trials: a row whose ledger says as"
        " much cannot be flagged, whatever its noise."
    )


def leaks(
    settings: KeyValues = None,
    *,
    epsilons: Annotated[str, typer.Option(help="Of a view.")] = "0.1,1,10",
    client: Annotated[int, typer.Option(help="Whose graphs.")] = 0,
    graphs: Annotated[int, typer.Option(help="Graphs for training.")] = 2,
    own: Annotated[int, typer.Option(min=20, help="The attacker's trials.")] = 600,
    victims: Annotated[int, typer.Option(min=20, help="The client's trials.")] = 800,
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> int:
    """Attack the privacy of one client's edges; 1 if more is lost than its ledger says.

    Without settings: the first method of leaks.toml on BACE.
    """
    base: dict[str, Value] = {"method": next(iter(ROWS)), "dataset": "BACE"}
    base |= {"features": "atoms-no-degree", **read_settings(settings)}
    out, err = consoles()
    rows, level = attack_all(
        base,
        numbers("--epsilons", epsilons, float),
        client=client,
        graphs=graphs,
        own_trials=own,
        victims=victims,
        processes=processes,
    )
    out.out("\n".join([*table(rows), "", _notes(own, victims, level)]))
    broken = [row for row in rows if row.is_broken]
    for row in broken:
        what = f"{row.name}, epsilon of a view {row.view_epsilon:g}"
        err.print(f"[red]more is lost than the ledger says[/red]: {escape(what)}")
    return 1 if broken else 0
