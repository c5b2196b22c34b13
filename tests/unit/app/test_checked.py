"""What a file says is read by annotations: strictly, and each fault by its place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from fedgraph_flwr.core.checked import Wrong, at_most, between, checked, finite


@dataclass(frozen=True, kw_only=True)
class Leaf:
    HYPHENS: ClassVar[bool] = True
    some_value: Annotated[float, finite]
    name: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Tree:
    OPEN: ClassVar[bool] = True
    leaf: Leaf | None = None
    leaves: Annotated[tuple[Leaf, ...], at_most(1)] = ()
    of: Mapping[str, bool | int | str] | None = None
    count: Annotated[int, between(1, 3)] = 1
    rest: Any = None

    def __post_init__(self):
        if self.count == 2 and self.leaf:
            raise ValueError("two have no leaf")


LEAF = {"some-value": 1}


def test_what_fits_is_made():
    found = checked(Tree, {"leaf": None, "leaves": [LEAF], "of": {"k": True}, "new": 0})
    assert found == Tree(leaves=(Leaf(some_value=1.0),), of={"k": True})
    assert type(found.leaves[0].some_value) is float


@pytest.mark.parametrize(
    ("value", "place", "must"),
    [
        ([], (), "must be a table"),
        ({"count": True}, ("count",), "must be an int"),
        ({"count": 4}, ("count",), "must be from 1 to 3"),
        ({"of": {"k": 1.5}}, ("of", "k"), "must be true or false"),
        ({"leaf": {}}, ("leaf", "some-value"), "must be there"),
        ({"leaf": {**LEAF, "x": 1}}, ("leaf", "x"), "is an unknown key"),
        ({"leaf": {"some_value": 1}}, ("leaf", "some_value"), "is an unknown key"),
        ({"leaf": {"some-value": "1"}}, ("leaf", "some-value"), "must be a number"),
        ({"leaf": {"some-value": 10**999}}, ("leaf", "some-value"), "must be a number"),
        ({"leaves": [LEAF] * 2}, ("leaves",), "must have at most 1 items"),
        ({"leaves": [{**LEAF, "name": "c"}]}, ("leaves", 0, "name"), "be 'a' or 'b'"),
        ({"leaves": LEAF}, ("leaves",), "must be a list"),
        ({"leaf": LEAF, "count": 2}, (), "two have no leaf"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(value, place, must):
    with pytest.raises(Wrong, match=must) as caught:
        checked(Tree, value)
    assert caught.value.place == place
