"""Anonymous walks one by one, in exact fractions, from Ivanov and Burnaev 2018."""

from __future__ import annotations

import math
from fractions import Fraction


def anonymous(walk):
    """Replace each node by the order of its first visit."""
    order = []
    for node in walk:
        if node not in order:
            order.append(node)
    return tuple(order.index(node) for node in walk)


def distribution(num_nodes, edges, length):
    """Probability of each anonymous walk, as a dict; a node without edges stays."""
    neighbours = {v: [t for s, t in edges if s == v] or [v] for v in range(num_nodes)}
    found = {}

    def go(walk, chance):
        if len(walk) == length + 1:
            name = anonymous(walk)
            found[name] = found.get(name, Fraction(0)) + chance
            return
        there = neighbours[walk[-1]]
        for node in there:
            go([*walk, node], chance / len(there))

    for start in range(num_nodes):
        go([start], Fraction(1, num_nodes))
    return found


def jensen_shannon(p, q):
    """Divergence in bits of two dicts of probabilities."""
    total = 0.0
    for key in {*p, *q}:
        middle = float(p.get(key, 0) + q.get(key, 0)) / 2
        for r in (p, q):
            share = float(r.get(key, 0))
            if share:
                total += share * math.log2(share / middle) / 2
    return total
