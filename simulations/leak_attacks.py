"""Attackers' guesses of a secret, from what they see, and how good these guesses are.

An attacker learns from trials of its own, by ridge regression, and is then tried on
those of the client. Of a secret of two worlds it is worth its advantage: how much
oftener it says "world 1" if that is so. For any (epsilon, delta)-private mechanism the
advantage is bounded. From the rates at the best threshold follows an epsilon that the
mechanism at least has; above that of the ledger it proves the ledger wrong.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

Floats = NDArray[np.float64]
Scored = tuple[Floats, NDArray[np.bool_]]  # scores, and whether it was world 1
FOLDS = 5
PENALTIES = 10.0 ** np.arange(-6, 3)
CLIP = 4.0  # standard deviations: Adam's first step has coordinates of hardly any
SHARE = 0.05 / 2  # of each of the two shares of an advantage, for 95 % together
RESAMPLED = 1000


class Verdict(NamedTuple):
    """How an attacker did."""

    advantage: float  # share of "1" in trials of world 1, minus that in the others; or
    # of a vector the share of its squared error that the attacker explains
    low: float  # 95 % interval, from Clopper-Pearson intervals of both shares; or by
    high: float  # resampling
    epsilon: float = 0.0  # no mechanism with a smaller one does as badly, at the level


def learner(width: int) -> RidgeCV:
    """Make an untrained ridge regression on ``width`` numbers of any scale."""
    return make_pipeline(
        StandardScaler(),
        FunctionTransformer(np.clip, kw_args={"a_min": -CLIP, "a_max": CLIP}),
        RidgeCV(PENALTIES * width),
    )


def read(x: NDArray[Any], target: Floats, others: NDArray[Any]) -> Floats:
    """Learn to read a number out of what is seen, and read it.

    The number is the world; or the log-likelihood ratio that a noisy view gives, which
    the attacker knows for trials of its own. Regression on that needs far fewer trials
    than telling the worlds apart, which differ little if noise is strong. Returns
    predictions for ``x``, each learned without its own trial, then for ``others``.

    Parameters
    ----------
    x : array, (num_trials, num_features)
    target : array, (num_trials,)
    others : array, (num_others, num_features)
    """
    model = learner(x.shape[1])
    own = cross_val_predict(model, x, target, cv=FOLDS)
    return np.concatenate([own, model.fit(x, target).predict(others)])


def judge(own: Scored, victims: Scored, *, level: float, delta: float = 0.0) -> Verdict:
    """Fix thresholds on the attacker's own trials, then count on the client's.

    ``level`` is the probability with which the verdict's epsilon, at ``delta``, may
    exceed the truth.

    Source
    ------
    Jagielski et al. 2020, arXiv:2006.07709, Sec. 4: Clopper-Pearson bounds of both
    rates at half the level each. Differs: world 0 may be what is guessed rightly.
    """
    steps = np.unique(own[0])
    # Between scores, as equal looks may score a hair more or less than in learning.
    thresholds = np.concatenate([steps[:1], (steps[1:] + steps[:-1]) / 2])
    (right, num_with), (wrong, num_without) = _says_one(own, thresholds)
    best = int(np.argmax(right / num_with - wrong / num_without))
    says = _says_one(victims, thresholds[[best]])
    tpr, fpr = (float(k[0] / num) for k, num in says)
    tpr_ends, fpr_ends = (clopper_pearson(k[0], num, SHARE) for k, num in says)
    shown = _least_epsilon(own, thresholds, level, delta)
    guess, at = np.unravel_index(int(np.argmax(shown)), shown.shape)
    return Verdict(
        advantage=tpr - fpr,
        low=float(tpr_ends[0] - fpr_ends[1]),
        high=float(tpr_ends[1] - fpr_ends[0]),
        epsilon=float(
            _least_epsilon(victims, thresholds[[at]], level, delta)[guess, 0]
        ),
    )


def _least_epsilon(
    scored: Scored, thresholds: Floats, level: float, delta: float
) -> Floats:
    """log((p - delta) / q), at least 0; p is the share guessed rightly and q wrongly.

    Has a row for the guess "1" at or above each threshold, one for "0" below.
    """
    (ones, n), (others, m) = _says_one(scored, thresholds)
    found = []
    for right, num_right, wrong, num_wrong in (
        (ones, n, others, m),
        (m - others, m, n - ones, n),
    ):
        p = clopper_pearson(right, num_right, level)[0] - delta  # missed by level / 2
        q = clopper_pearson(wrong, num_wrong, level)[1]
        found.append(np.log(np.maximum(p, q) / q))
    return np.stack(found)


def _says_one(scored: Scored, thresholds: Floats) -> list[tuple[Floats, int]]:
    """Count the trials that score at least each threshold, and all; world 1 first."""
    scores, is_one = scored
    both = np.sort(scores[is_one]), np.sort(scores[~is_one])
    return [
        (len(s) - np.searchsorted(s, thresholds).astype(float), len(s)) for s in both
    ]


def explained(
    predicted: Floats, truth: Floats, constant: Floats, rng: np.random.Generator
) -> Verdict:
    """Share of the squared error of a constant guess that the attacker is rid of.

    Parameters
    ----------
    predicted, truth : arrays, (num_trials, width)
    constant : array, (width,)
        The guess of one who sees nothing. ``truth`` must not be that always.
    """
    of_attack, of_none = (
        ((guess - truth) ** 2).sum(axis=1) for guess in (predicted, constant)
    )
    drawn = rng.integers(len(truth), size=(RESAMPLED, len(truth)))
    shares = 1 - of_attack[drawn].sum(axis=1) / of_none[drawn].sum(axis=1)
    found = [1 - of_attack.sum() / of_none.sum(), *np.quantile(shares, (0.025, 0.975))]
    return Verdict(*(max(0.0, float(share)) for share in found))


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


def power(trials: int) -> tuple[float, float]:
    """Advantages by ``trials`` per world: the least that an interval tells from 0.

    The second is the least true one for which that happens in 80 % of all cases.
    """
    right = np.arange(trials // 2, trials + 1.0)  # by as much as the others are wrong
    low = clopper_pearson(right, trials, SHARE)[0]
    is_shown = low > clopper_pearson(trials - right, trials, SHARE)[1]
    least = float((2 * right[is_shown][0] - trials) / trials)
    return least, least + 0.84 * float(np.sqrt((1 - least**2) / 2 / trials))


def bound(epsilon: float, delta: float) -> float:
    """Largest advantage against any (epsilon, delta)-private mechanism.

    Source
    ------
    Kairouz et al. 2015, arXiv:1311.0776, Sec. 2: tanh(epsilon / 2) if delta is 0.
    """
    return float(np.tanh(epsilon / 2) + 2 * delta / (np.exp(min(epsilon, 700)) + 1))
