"""What a cell's text may mean: names that look alike."""

import pytest

from datasets.cells import alike, by_look, twin


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("7", "7.0", True),
        ("7", "007", True),
        ("9007199254740993", "9007199254740992", False),  # one float
        ("Caf\u00e9", "Cafe\u0301", True),
        ("No", "no", True),
        ("a b", "a\u00a0 b", True),
        ("A-1", "\u0410\u20131", True),  # Cyrillic, and a dash
        ("x\u200b", "x", True),
        ("a", "b", False),
        ("nan", "inf", False),
    ],
)
def test_names_that_look_alike_share_one_key(one, other, same):
    assert (alike(one) == alike(other)) is same
    looks = by_look([one])
    told = f" ({one!a} looks alike, {other!a} is not it)" if same else ""
    assert twin(other, looks) == told
    assert not twin(one, looks)
