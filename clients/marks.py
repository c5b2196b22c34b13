"""Marks the steps of a client that a stack can do in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_done_by_stacks"


def done_by_stacks(step: F) -> F:
    """Mark a method of a client: a stack does the same for many clients at once.

    An override is another function, which has no mark: its clients train one by one.
    """
    setattr(step, _MARK, True)
    return step


def is_done_by_stacks(step: object) -> bool:
    """Whether a method has the mark."""
    return bool(getattr(step, _MARK, False))
