"""Which of Flower's runs did a round, after resumes."""

from __future__ import annotations

import pytest

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.wire import Lives


def test_a_run_that_was_never_resumed_did_all_rounds():
    assert [Lives(7).run_of(r) for r in (1, 5)] == [7, 7]
    assert Lives(7).to_text() == ""


def test_each_round_is_of_the_run_whose_checkpoint_has_it():
    lives = Lives(9, ((5, 2), (7, 4)))
    assert [lives.run_of(r) for r in (1, 2, 3, 4, 5, 99)] == [5, 5, 7, 7, 9, 9]


def test_what_was_written_is_read():
    lives = Lives(9, ((5, 2), (2**63, 4)))
    assert Lives.from_text(9, lives.to_text()) == lives
    assert Lives.from_text(9, "") == Lives(9)
    spared = Lives(9, ((5, 2),), spared=(5, 7))
    assert spared.to_text() == "5:2 5: 7:"
    assert Lives.from_text(9, spared.to_text()) == spared


@pytest.mark.parametrize(
    "text", ["1", "1:2:3", "1:-2", "a:1", "1:2  3:4", "1:4 2:4", "1:4 2:3", "1:2\n", 5]
)
def test_what_is_no_such_text_is_refused(text):
    with pytest.raises(WireError, match=r"(?s)earlier-runs must be .* same version"):
        Lives.from_text(9, text)
