"""Exact privacy of Gaussian noise, by its closed form and without our code."""

from __future__ import annotations

import math

from scipy.special import log_ndtr


def gaussian_delta(epsilon: float, effective_multiplier: float) -> float:
    """Exact delta of one Gaussian release, noise in units of the sensitivity.

    ``Phi(1 / (2 s) - epsilon s) - exp(epsilon) Phi(-1 / (2 s) - epsilon s)``. Several
    releases with multipliers s_i equal one with ``s = sum(s_i ** -2) ** -0.5``.

    Source
    ------
    Balle and Wang 2018, arXiv:1805.06530, Theorem 8.
    """
    s = effective_multiplier
    left = math.exp(log_ndtr(0.5 / s - epsilon * s))
    return left - math.exp(epsilon + log_ndtr(-0.5 / s - epsilon * s))
