"""Marks the steps of a client that a stack can do in its place."""

from __future__ import annotations

from typing import TypeVar

S = TypeVar("S")
# By id, which lasts as they do. An attribute would be copied by functools.wraps.
_DONE: dict[int, object] = {}


def done_by_stacks(step: S) -> S:
    """Mark a method of a client: a stack does the same for many clients at once.

    An override is another function, which has no mark: its clients train one by one.
    """
    _DONE[id(step)] = step
    return step


def is_done_by_stacks(step: object) -> bool:
    """Whether a method, as it stands in its class, has the mark."""
    function = step.fget if isinstance(step, property) else step
    return id(function) in _DONE
