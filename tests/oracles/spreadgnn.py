"""What clients of SpreadGNN say to each other, transcribed number by number.

He et al. 2021, arXiv:2106.02743, Eq. (12) and Sec. 2.3, in the form of our
specification (Sec. 2.4, 2.5, 4.3); nothing of the code under test is used.
"""

from __future__ import annotations

import numpy as np

from .task_covariance import update


def ring(n):
    """Neighbours of each client of a ring."""
    return {k: sorted({(k - 1) % n, (k + 1) % n} - {k}) for k in range(n)}


def metropolis(neighbours):
    """M of Xiao and Boyd: M_kj = 1 / (1 + max(deg_k, deg_j)), row by row."""
    n = len(neighbours)
    m = [[0.0] * n for _ in range(n)]
    for k in range(n):
        for j in neighbours[k]:
            m[k][j] = 1 / (1 + max(len(neighbours[k]), len(neighbours[j])))
        m[k][k] = 1 - sum(m[k])
    return m


def uniform(neighbours):
    """Every member of the neighbourhood weighs the same."""
    n = len(neighbours)
    m = [[0.0] * n for _ in range(n)]
    for k in range(n):
        for j in [k, *neighbours[k]]:
            m[k][j] = 1 / (1 + len(neighbours[k]))
    return m


def samples(neighbours, counts):
    """In proportion to N_j within the neighbourhood."""
    n = len(neighbours)
    m = [[0.0] * n for _ in range(n)]
    for k in range(n):
        around = [k, *neighbours[k]]
        for j in around:
            m[k][j] = counts[j] / sum(counts[i] for i in around)
    return m


def mix(m, vectors):
    """X_k <- sum_j M_kj X_j, for vectors as lists."""
    n, length = len(vectors), len(vectors[0])
    return [
        [sum(m[k][j] * vectors[j][i] for j in range(n)) for i in range(length)]
        for k in range(n)
    ]


def dpa_sgd(m, period, start, gradients, rate):
    """X_{t+1} = M_t (X_t - rate G_t), M_t = M where t mod period == 0, else I.

    ``gradients(t, k, x)`` is client k's; t counts from 0. The list of all X_t.
    """
    x = [list(vector) for vector in start]
    course = [x]
    for t in range(gradients.rounds):
        x = [
            [a - rate * g for a, g in zip(x[k], gradients(t, k, x[k]), strict=True)]
            for k in range(len(x))
        ]
        if period > 0 and t % period == 0:
            x = mix(m, x)
        course.append(x)
    return course


def course_of_omegas(neighbours, own, renewals, sent, eta):
    """Omega_k after each round by Eq. (11), with what neighbours sent a round before.

    ``own``: tasks of each client. ``renewals[t][k]``: client k's head (tasks, width) at
    each renewal of round t; there is none in round 0. ``sent[t][k]``: that at its end.
    A list, by round, of (tasks, matrix) by client.
    """
    n = len(neighbours)
    now = [(own[k], np.eye(len(own[k])) / len(own[k])) for k in range(n)]
    course = [now]
    for t in range(1, len(sent)):
        after = []
        for k in range(n):
            around = {j: course[t - 1][j] for j in neighbours[k]}
            tasks = sorted({task for j in [k, *neighbours[k]] for task in own[j]})
            mine = (tasks, np.eye(len(tasks)) / len(tasks))
            if t > 1:
                mine = course[t - 1][k]
            for head in renewals[t][k]:
                phi = []
                for task in tasks:
                    rows = [sent[t - 1][j][task] for j in around if task in own[j]]
                    phi.append(head[task] if task in own[k] else np.mean(rows, axis=0))
                everybody = [{**around, k: mine}[j] for j in sorted([k, *around])]
                mine = (tasks, update(everybody, np.array(phi), tasks, eta))
            after.append(mine)
        course.append(after)
    return course
