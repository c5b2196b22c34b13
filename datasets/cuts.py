"""How a data set is cut among clients: found out once per process, for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Generic, ParamSpec, TypeVar

from fedgraph_flwr.errors import FedGraphError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Whole(Generic[T]):
    """A whole data set, or its labels, told from others by a hash alone."""

    sha256: str
    content: T = field(compare=False)


def cut_once(function: Callable[P, R]) -> Callable[P, R]:
    """Remember the last results of a function, and its errors.

    Each client would else cut the whole set again, at a cost that grows with the square
    of their number. To find out that a set cannot be cut takes as long.

    Parameters
    ----------
    function : callable
        Its arguments are hashable, and it depends on nothing else.
    """

    @lru_cache(maxsize=2)
    def kept(*args: Hashable, **named: Hashable) -> R | FedGraphError:
        try:
            return function(*args, **named)  # type: ignore[arg-type]
        except FedGraphError as error:
            return error.with_traceback(None)

    @wraps(function)
    def cut(*args: P.args, **named: P.kwargs) -> R:
        found = kept(*args, **named)  # type: ignore[arg-type]
        if isinstance(found, FedGraphError):
            raise copy(found)  # one raised again keeps all who ever caught it
        return found

    cut.cache_clear = kept.cache_clear  # type: ignore[attr-defined]
    return cut
