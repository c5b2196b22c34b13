"""Attackers of the privacy audit, and what their successes prove.

An attacker turns what it sees into a score, large where it believes in the edge. It
learns the score on trials of its own (it knows everything but the edge and the noise),
fixes its thresholds there, and is then tried on trials of the client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
FOLDS = 5
PENALTIES = 10.0 ** np.arange(-6, 3)
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
    advantages = [_rates(*own, t) @ (1, -1) for t in thresholds]
    tpr, fpr = _counts(*victims, thresholds[int(np.argmax(advantages))])
    (tpr_low, tpr_high), (fpr_low, fpr_high) = (
        clopper_pearson(*c, 0.05 / 2) for c in (tpr, fpr)
    )
    guesses = [(t, is_edge) for t in thresholds for is_edge in (True, False)]
    shown = [_least_epsilon(*own, *guess, level=level) for guess in guesses]
    guess = guesses[int(np.argmax(shown))]
    return Verdict(
        advantage=tpr[0] / tpr[1] - fpr[0] / fpr[1],
        low=tpr_low - fpr_high,
        high=tpr_high - fpr_low,
        epsilon=_least_epsilon(*victims, *guess, level=level),
    )


def _least_epsilon(
    scores: Floats, has_edge: Bools, threshold: float, is_edge: bool, *, level: float
) -> float:
    """log(p / q), p the share rightly and q that wrongly guessed ``is_edge``; >= 0."""
    right, wrong = _counts(scores, has_edge, threshold)
    if not is_edge:
        right, wrong = ((n - k, n) for k, n in (wrong, right))
    p = clopper_pearson(*right, level)[0]  # two-sided at level: level / 2 below
    q = clopper_pearson(*wrong, level)[1]
    return float(np.log(p / q)) if p > q else 0.0


Count = tuple[int, int]


def _counts(scores: Floats, has_edge: Bools, threshold: float) -> tuple[Count, Count]:
    """How often "edge" is said, of how many trials, with the edge and without."""
    says = scores >= threshold
    with_edge, without = says[has_edge], says[~has_edge]
    return (int(with_edge.sum()), len(with_edge)), (int(without.sum()), len(without))


def _rates(scores: Floats, has_edge: Bools, threshold: float) -> Floats:
    return np.array([k / n for k, n in _counts(scores, has_edge, threshold)])


def clopper_pearson(successes: int, trials: int, level: float) -> tuple[float, float]:
    """Exact interval of a share that is missed with probability <= ``level``."""
    k, n = successes, trials
    low = float(beta.ppf(level / 2, k, n - k + 1)) if k else 0.0
    high = float(beta.ppf(1 - level / 2, k + 1, n - k)) if k < n else 1.0
    return low, high


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
    total = np.zeros(1_000_000)
    for epsilon in epsilons:
        value = 1 + rng.laplace(0, 1 / epsilon, len(total))
        if is_rounded:
            flip = np.exp(-epsilon / 2) / 2
            total += np.log((1 - flip) / flip) * np.where(value > 0.5, 1, -1)
        else:
            total += epsilon * (2 * np.clip(value, 0, 1) - 1)
    return float((total > 0).mean() - (total < 0).mean())
