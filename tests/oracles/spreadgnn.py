"""What clients of SpreadGNN say to each other, transcribed number by number.

He et al. 2021, arXiv:2106.02743, Eq. (12) and Sec. 2.3, in the form of our
specification (Sec. 2.4, 2.5, 4.3); nothing of the code under test is used.
"""

from __future__ import annotations

import json

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


def letter_bytes(shapes, *, own_tasks, known_tasks, width, is_sealed):
    """Size of one letter, byte by byte.

    ``shapes``: of the model's float32 tensors by name. safetensors: 8 bytes of length,
    a JSON header padded with spaces to a multiple of 8, then the raw numbers.
    """
    arrays = {f"model/{name}": ("F32", shape) for name, shape in shapes.items()}
    arrays |= {
        "head_rows": ("F32", (own_tasks, width)),
        "task_ids": ("I64", (own_tasks,)),
        "omega": ("F32", (known_tasks, known_tasks)),
        "omega_task_ids": ("I64", (known_tasks,)),
        "counts": ("I64", (2,)),
    }
    # wide types first, then by name: so the format's writer orders them
    order = sorted(arrays, key=lambda name: (arrays[name][0] != "I64", name))
    entries, offset = {}, 0
    for name in order:
        kind, shape = arrays[name]
        size = 8 if kind == "I64" else 4
        for length in shape:
            size *= length
        offsets = [offset, offset + size]
        entries[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": offsets,
        }
        offset += size
    header = len(json.dumps(entries, separators=(",", ":")))
    contents = 8 + (header + 7) // 8 * 8 + offset
    envelope = 4 + 32 + 4 + 4 + 4  # kind, run, round, sender, receiver
    seal = 12 + 16 if is_sealed else 0  # nonce, tag
    return envelope + seal + contents


def letters_down(neighbours):
    """Letters delivered per mixing round: sum_k |N_k|."""
    return sum(len(peers) for peers in neighbours.values())
