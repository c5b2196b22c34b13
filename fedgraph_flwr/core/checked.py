"""Reads what a file of somebody else says, by annotations; what predicts needs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from typing import get_type_hints as hints_of

_Place = tuple[str | int, ...]
_WORDS = {bool: "true or false", int: "an int", float: "a number", str: "a text"}
UNKNOWN = "is an unknown key"


class Wrong(ValueError):
    """A value that must not be: where it stands, what it must be, and what it is."""

    def __init__(self, place: _Place, must: str, got: Any) -> None:
        super().__init__(must)
        self.place, self.must, self.got = place, must, got


def rule(holds: Callable[[Any], bool], must: str) -> Callable[[Any], Any]:
    """Make a rule: what must hold of a value, and the words if it does not."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(must)
        return value

    return check


finite = rule(math.isfinite, "must be a finite number")
positive = rule(lambda value: value > 0, "must be greater than 0")


def at_most(most: int) -> Callable[[Any], Any]:
    """Make a rule for the length of a list."""
    return rule(lambda values: len(values) <= most, f"must have at most {most} items")


def between(least: float, most: float) -> Callable[[Any], Any]:
    """Make a rule for a number."""
    return rule(lambda n: least <= n <= most, f"must be from {least} to {most}")


def one_of(*allowed: object) -> Callable[[Any], Any]:
    """Make a rule for a choice."""
    *most, last = map(repr, allowed)
    some = f"{', '.join(most)} or " * bool(most)
    return rule(lambda value: value in allowed, f"must be {some}{last}")


def checked(kind: Any, value: Any, *place: str | int) -> Any:
    """Return a value of JSON or TOML as ``kind`` has it.

    Parameters
    ----------
    kind : type
        Dataclass, list, tuple of any length, mapping, literal, union, or what JSON has.
        Further arguments of ``Annotated`` are rules: they return the value, or raise
        ValueError. Keys of a dataclass with ``HYPHENS`` are spelled with them; one that
        is ``OPEN`` passes over keys that it does not know, as another version's.
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
        return checked(type(value) if type(value) in args else args[0], value, *place)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(checked(args[0], v, *place, k) for k, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {
            checked(args[0], k, *place, k): checked(args[1], v, *place, k)
            for k, v in value.items()
        }
    if kind is float and type(value) is int and abs(value) < 2**1000:
        return float(value)
    if kind is not Any and type(value) is not kind:
        words = "a list" if origin in (list, tuple) else "a table"
        raise Wrong(place, f"must be {_WORDS.get(kind, words)}", value)
    return value


def _by_rule(rule: Callable[[Any], Any], value: Any, place: _Place) -> Any:
    try:
        return rule(value)
    except ValueError as error:
        raise Wrong(place, str(error), value) from error


def _members(kind: Any, value: Any, place: _Place) -> Callable[[Any], Any]:
    """Read the fields of a dataclass; return what makes it."""
    if not isinstance(value, dict):
        raise Wrong(place, "must be a table", value)
    is_apart = getattr(kind, "HYPHENS", False)
    named = {f.name.replace("_", "-") if is_apart else f.name: f for f in fields(kind)}
    for key in () if getattr(kind, "OPEN", False) else value:
        if key not in named:
            raise Wrong((*place, key), UNKNOWN, value[key])
    hints, found = hints_of(kind, include_extras=True), {}
    for key, field in named.items():
        if key in value:
            found[field.name] = checked(hints[field.name], value[key], *place, key)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise Wrong((*place, key), "must be there", None)
    return lambda _: kind(**found)
