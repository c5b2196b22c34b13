"""Which points of a matrix of tests are fast; ``make test-all`` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import toys

from fedgraph_flwr.registry import METHODS


def mostly_slow(cases: Iterable[Any], *, fast: Iterable[Any]) -> list[Any]:
    """Mark all cases as slow except those in ``fast``, which must be among them.

    A tuple has a value for each of several arguments.
    """
    cases, fast = list(cases), list(fast)
    strangers = [case for case in fast if case not in cases]
    assert not strangers, f"no such case: {strangers}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in fast else pytest.mark.slow,
        )
        for case in cases
    ]


def one_per_strategy(
    cases: Iterable[str], *, also: Iterable[str] = ()
) -> pytest.MarkDecorator:
    """Parametrise by ``method``, fast for one case of each strategy and for ``also``.

    This is enough for what the server does. What clients do needs every method.
    """
    rows = list(METHODS)
    ordered = sorted(cases, key=lambda c: (" " in c, rows.index(c.split()[0]), c))
    first: dict[type, str] = {}
    for case in ordered:
        first.setdefault(toys.row(case).strategy, case)
    fast = {*first.values(), *also}
    return pytest.mark.parametrize("method", mostly_slow(ordered, fast=fast))
