"""Attackers of the privacy audit, and what their successes prove.

An attacker turns what it sees into a score, large where it believes in the edge. It
learns the score on trials of its own (it knows everything but the edge and the noise),
fixes its thresholds there, and is then tried on trials of the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
FOLDS = 5
PENALTIES = 10.0 ** np.arange(-6, 3)
WEAKENINGS = (2, 4, 10, 20)  # noise of a half, a quarter ... is looked for
AUDITS = 20  # simulated of each
CLIP = 4.0  # standard deviations: Adam's first step has coordinates of hardly any


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How an attacker did.

    Parameters
    ----------
    advantage : float
        Share of trials with the edge in which it says so, minus that of the others.
    low, high : float
        95 % interval of the advantage, from Clopper-Pearson intervals of both shares.
    epsilon : float
        With the level asked for, no mechanism with a smaller epsilon does as badly.
    """

    advantage: float
    low: float
    high: float
    epsilon: float


class Reader:
    """Kernel ridge regression with a linear kernel: reads a number out of an update.

    The number is the log-likelihood ratio that the noisy view itself gives, which the
    attacker knows for trials of its own. Regression on it needs far fewer trials than
    telling the worlds apart, which differ little where noise is strong.

    Parameters
    ----------
    x : float array, shape (num_trials, num_features)
    target : float array, shape (num_trials,)
    """

    def __init__(self, x: NDArray[np.floating], target: Floats) -> None:
        self._mean = x.mean(axis=0)
        scale = x.std(axis=0)
        self._moves = scale > 0
        self._scale = scale[self._moves]
        self._z = self._standardised(x)
        self._offset = float(target.mean())
        gram = self._gram(self._z)
        fold = np.arange(len(x)) % FOLDS
        found = np.zeros((len(PENALTIES), len(x)))
        for k in range(FOLDS):
            out = fold == k
            found[:, out] = _ridge(
                gram[np.ix_(~out, ~out)], target[~out], gram[np.ix_(out, ~out)]
            )
        best = int(np.argmin(((found - target) ** 2).mean(axis=1)))
        self.own_scores: Floats = found[best]  # each predicted without its own trial
        values, vectors = np.linalg.eigh(gram)
        self._weights = vectors @ (
            (vectors.T @ (target - self._offset)) / (values + PENALTIES[best])
        )

    def scores(self, x: NDArray[np.floating]) -> Floats:
        """Predict the number for other trials."""
        found: Floats = self._gram(self._standardised(x)) @ self._weights
        return found + self._offset

    def _standardised(self, x: NDArray[np.floating]) -> NDArray[np.floating]:
        z = (x[:, self._moves] - self._mean[self._moves]) / self._scale
        return np.asarray(np.clip(z, -CLIP, CLIP))

    def _gram(self, z: NDArray[np.floating]) -> Floats:
        found: Floats = (z @ self._z.T).astype(np.float64)
        found /= max(1, z.shape[1])
        return found


def _ridge(gram: Floats, target: Floats, across: Floats) -> Floats:
    """Predictions for each penalty, shape (num_penalties, num_rows of ``across``)."""
    offset = target.mean()
    values, vectors = np.linalg.eigh(gram)
    projected = vectors.T @ (target - offset)
    weights = vectors @ (projected / (values + PENALTIES[:, None])).T
    return np.asarray(offset + (across @ weights).T)


def judge(
    own: tuple[Floats, Bools],
    victims: tuple[Floats, Bools],
    *,
    level: float,
) -> Verdict:
    """Fix thresholds on the attacker's own trials, then count on the client's.

    Parameters
    ----------
    own, victims : tuple of array
        Scores, and whether the edge was there; shapes (num_trials,).
    level : float
        Probability with which ``epsilon`` may exceed the truth.

    Source
    ------
    Jagielski et al. 2020, arXiv:2006.07709, Sec. 4: Clopper-Pearson bounds of both
    rates at half the level each. Differs: "no edge" may be what is guessed rightly.
    """
    thresholds = np.unique(own[0])
    best = int(np.argmax(np.subtract(*_rates(*own, thresholds))))
    counts = _says_edge(*victims, thresholds[best])
    num_with, num_without = _sizes(victims[1])
    tpr, fpr = counts[0] / num_with, counts[1] / num_without
    tpr_low, tpr_high = clopper_pearson(counts[0], num_with, 0.05 / 2)
    fpr_low, fpr_high = clopper_pearson(counts[1], num_without, 0.05 / 2)
    shown = _least_epsilon(*own, thresholds, level=level)  # (2, num_thresholds)
    guess, at = np.unravel_index(int(np.argmax(shown)), shown.shape)
    proven = _least_epsilon(*victims, thresholds[[at]], level=level)
    return Verdict(
        advantage=float(tpr - fpr),
        low=float(tpr_low - fpr_high),
        high=float(tpr_high - fpr_low),
        epsilon=float(proven[guess, 0]),
    )


def _least_epsilon(
    scores: Floats, has_edge: Bools, thresholds: Floats, *, level: float
) -> Floats:
    """log(p / q), at least 0; p is the share guessed rightly and q wrongly.

    Returns
    -------
    float64 array, shape (2, num_thresholds)
        For the guess "edge" at or above the threshold, and "no edge" below it.
    """
    with_edge, without = _says_edge(scores, has_edge, thresholds)
    num_with, num_without = _sizes(has_edge)
    found = []
    for right, num_right, wrong, num_wrong in (
        (with_edge, num_with, without, num_without),
        (num_without - without, num_without, num_with - with_edge, num_with),
    ):
        p = clopper_pearson(right, num_right, level)[0]  # missed by level / 2
        q = clopper_pearson(wrong, num_wrong, level)[1]
        found.append(np.log(np.maximum(p, q) / q))
    return np.stack(found)


def _says_edge(
    scores: Floats, has_edge: Bools, thresholds: Floats | np.float64
) -> tuple[Floats, Floats]:
    """Count the trials with and without the edge that score at least each threshold."""
    with_edge, without = np.sort(scores[has_edge]), np.sort(scores[~has_edge])
    return tuple(  # type: ignore[return-value]
        len(s) - np.searchsorted(s, thresholds).astype(np.float64)
        for s in (with_edge, without)
    )


def _sizes(has_edge: Bools) -> tuple[int, int]:
    return int(has_edge.sum()), int((~has_edge).sum())


def _rates(
    scores: Floats, has_edge: Bools, thresholds: Floats
) -> tuple[Floats, Floats]:
    with_edge, without = _says_edge(scores, has_edge, thresholds)
    num_with, num_without = _sizes(has_edge)
    return with_edge / num_with, without / num_without


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


def best_possible(epsilons: Sequence[float], *, is_rounded: bool) -> float:
    """Largest advantage against Laplace views of one pair, by 10^6 draws.

    One view with noise of scale 1 / epsilon: 1 - exp(-epsilon / 2), rounded or not.
    """
    rng = np.random.default_rng(0)
    total = _view_scores(rng, np.ones(1_000_000), epsilons, is_rounded=is_rounded)
    return float((total > 0).mean() - (total < 0).mean())


def ratios(values: Floats | float, epsilon: float, *, is_rounded: bool) -> Floats:
    """Log-likelihood ratios, edge against none, of released values of a pair.

    For Laplace noise it is ``epsilon (|w| - |w - 1|)``, which clamping to [0, 1] does
    not change; of a rounded value it is that of randomised response.
    """
    if is_rounded:
        flip = np.exp(-epsilon / 2) / 2
        found = np.log((1 - flip) / flip) * np.where(np.asarray(values) > 0.5, 1, -1)
    else:
        found = epsilon * (2 * np.clip(values, 0.0, 1.0) - 1)
    return np.asarray(found, np.float64)


def seen_weakening(
    epsilons: Sequence[float],
    *,
    claimed: float,
    is_rounded: bool,
    num_own: int,
    num_victims: int,
    level: float,
) -> int:
    """Say how much too little noise must be for an audit of this size to see it.

    Audits of a client are simulated that draws its views of the pair with noise of
    scale 1 / (k epsilon) and claims the same, seen by the best attack there is.

    Parameters
    ----------
    epsilons : sequence of float
        Of each view.
    claimed : float
        What the ledger says.
    is_rounded : bool
    num_own, num_victims : int
        Trials per world.
    level : float
        Of each lower bound.

    Returns
    -------
    int
        The smallest k of ``WEAKENINGS`` that shows more than is claimed in 4 of 5
        audits; 0 where none does.
    """
    if claimed >= most_showable(num_victims, level):
        return 0
    trials = [np.arange(2 * n) % 2 == 1 for n in (num_own, num_victims)]
    for k in WEAKENINGS:
        rng = np.random.default_rng(0)
        seen = 0
        for done in range(AUDITS):
            own, victims = (
                _view_scores(rng, t, epsilons, is_rounded=is_rounded, weakening=k)
                for t in trials
            )
            found = judge((own, trials[0]), (victims, trials[1]), level=level)
            seen += found.epsilon > claimed
            if done + 1 - seen > AUDITS / 5:
                break
        if seen >= AUDITS * 4 / 5:
            return k
    return 0


def _view_scores(
    rng: np.random.Generator,
    has_edge: NDArray[Any],
    epsilons: Sequence[float],
    *,
    is_rounded: bool,
    weakening: float = 1.0,
) -> Floats:
    """Scores of the best attack on views with so many times less noise."""
    total = np.zeros(len(has_edge))
    for epsilon in epsilons:
        noise = rng.laplace(0, 1 / (weakening * epsilon), len(total))
        total += ratios(np.add(has_edge, noise), epsilon, is_rounded=is_rounded)
    return total
