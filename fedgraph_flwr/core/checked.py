"""Reads what a file of somebody else says, by the annotations of dataclasses.

It needs the standard library alone, as what predicts has no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

_T = TypeVar("_T")
_WORDS = {bool: "true or false", int: "an int", float: "a number", str: "a text"}
UNKNOWN = "is an unknown key"


class Wrong(ValueError):
    """A value that must not be: where it stands, what it must be, and what it is."""

    def __init__(self, place: tuple[str | int, ...], must: str, got: Any) -> None:
        super().__init__(must)
        self.place, self.must, self.got = place, must, got


def finite(value: float) -> float:
    """Refuse infinities and NaN."""
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


def positive(value: float) -> float:
    """Refuse 0 and less."""
    if value <= 0:
        raise ValueError("must be greater than 0")
    return value


def at_most(most: int) -> Callable[[Sized], Sized]:
    """Make a rule for the length of a list."""

    def check(values: Sized) -> Sized:
        if len(values) > most:
            raise ValueError(f"must have at most {most} items")
        return values

    return check


def between(least: int, most: int) -> Callable[[int], int]:
    """Make a rule for an int."""

    def check(value: int) -> int:
        if not least <= value <= most:
            raise ValueError(f"must be from {least} to {most}")
        return value

    return check


def one_of(*allowed: _T) -> Callable[[_T], _T]:
    """Make a rule for a choice."""

    def check(value: _T) -> _T:
        if value not in allowed:
            *most, last = map(repr, allowed)
            some = f"{', '.join(most)} or " * bool(most)
            raise ValueError(f"must be {some}{last}")
        return value

    return check


def checked(kind: Any, value: Any, *place: str | int) -> Any:
    """Return a value of JSON or TOML as ``kind`` has it.

    Parameters
    ----------
    kind : type
        Dataclass, list, tuple of any length, mapping, literal, union, or what JSON has.
        Further arguments of ``Annotated`` are rules: they return the value, or raise
        ValueError. Of a dataclass with ``HYPHENS`` keys are spelled with them.
    place : str or int
        Keys that lead to the value.

    Raises
    ------
    Wrong
        It is of another kind; in a dataclass: a key is unknown, or missing.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = checked(args[0], value, *place)
        for rule in args[1:]:
            value = _by_rule(rule, value, place)
        return value
    if is_dataclass(kind):
        return _by_rule(_members(kind, value, place), value, place)
    if origin is Literal:
        return _by_rule(one_of(*args), checked(type(args[0]), value, *place), place)
    if origin in (Union, UnionType):
        kinds = [a for a in args if a is not NoneType]
        if value is None and NoneType in args:
            return None
        return checked(type(value) if type(value) in kinds else kinds[0], value, *place)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(checked(args[0], v, *place, k) for k, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {
            checked(args[0], k, *place, k): checked(args[1], v, *place, k)
            for k, v in value.items()
        }
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if kind is not Any and type(value) is not kind:
        words = "a list" if origin in (list, tuple) else "a table"
        raise Wrong(place, f"must be {_WORDS.get(kind, words)}", value)
    return value


def _by_rule(rule: Callable[[Any], _T], value: Any, place: tuple[str | int, ...]) -> _T:
    try:
        return rule(value)
    except Wrong:
        raise
    except ValueError as error:
        raise Wrong(place, str(error), value) from error


def _members(
    kind: Any, value: Any, place: tuple[str | int, ...]
) -> Callable[[Any], Any]:
    """Read the fields of a dataclass; return what makes it."""
    if not isinstance(value, dict):
        raise Wrong(place, "must be a table", value)
    is_apart = getattr(kind, "HYPHENS", False)
    named = {f.name.replace("_", "-") if is_apart else f.name: f for f in fields(kind)}
    for key in value:
        if key not in named:
            raise Wrong((*place, key), UNKNOWN, value[key])
    hints, found = hints_of(kind, include_extras=True), {}
    for key, field in named.items():
        if key in value:
            found[field.name] = checked(hints[field.name], value[key], *place, key)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Wrong((*place, key), "must be there", None)
    return lambda _: kind(**found)
