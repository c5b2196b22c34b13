"""Cuts clients into buckets of like sizes, so that padding to the largest costs little.

In a stack each client is as large as the largest. One stack more means that all
operators of a step are launched once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many numbers a device computes in a launch, and how many a stack may hold.

    The size of a client counts the numbers of one hidden layer in a step.

    Parameters
    ----------
    launch : int
        A step computes as many numbers in the time in which its operators are launched.
    most : int
        Numbers of a whole stack, with its padding.
    """

    launch: int
    most: int


# For GIN. On a CPU with AVX-512 a step has 2 ms of launches, and tensors of more leave
# its caches. Those of a GPU are estimates: 7 ms; 1.5 GB with all that a step keeps.
LIMITS = {
    "cpu": Limits(launch=2**17, most=2**19),
    "cuda": Limits(launch=2**23, most=2**25),
}


def buckets(sizes: Sequence[int], limits: Limits) -> list[list[int]]:
    """Cut clients into those buckets that cost least, sizes and launches together.

    A bucket costs ``limits.launch`` and, for each member, the size of its largest one.
    Of equally good cuts the one with the fewest buckets counts.

    Parameters
    ----------
    sizes : sequence of int
        Of each client.
    limits : Limits
        A client that is larger has a bucket of its own.

    Returns
    -------
    list of list of int
        Positions of the clients, each once and ascending; buckets of small ones first.
    """
    order = np.argsort(sizes, kind="stable")
    ascending = np.asarray(sizes)[order]
    count = len(ascending)
    if not count:
        return []
    whole = int(ascending[-1]) * count
    if whole - ascending.sum() <= limits.launch and whole <= limits.most:
        return [sorted(order.tolist())]  # no cut saves as much as it costs
    # A cheapest cut has buckets of neighbours in this order. Of the first k clients:
    least = np.zeros(count + 1, np.int64)  # what their buckets cost
    number = np.zeros_like(least)  # how many these are
    begin = np.zeros_like(least)  # where the last of them begins
    for end in range(1, count + 1):
        padded = (end - np.arange(end)) * ascending[end - 1]
        first = int(np.searchsorted(-padded, -limits.most))  # of those small enough
        first = min(first, end - 1)
        costs = least[first:end] + limits.launch + padded[first:]
        chosen = first + int(np.lexsort((number[first:end], costs))[0])
        least[end] = costs[chosen - first]
        number[end], begin[end] = number[chosen] + 1, chosen
    found, end = [], count
    while end:
        found.append(sorted(order[begin[end] : end].tolist()))
        end = int(begin[end])
    return found[::-1]
