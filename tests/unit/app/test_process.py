"""What a process that this one starts answers, and how much memory it held."""

from __future__ import annotations

import pytest

from fedgraph_flwr.core.process import in_own_process, resident_bytes


def held(mebibytes):
    block = bytearray(b"1" * (mebibytes * 2**20))
    with_block = resident_bytes()
    del block
    return with_block, resident_bytes(), resident_bytes(at_most=True)


def test_memory_now_and_at_most_is_that_of_the_other_process():
    with_block, after, most = in_own_process(held, 64)
    assert with_block - after > 50 * 2**20
    assert most >= with_block


def test_what_another_process_raises_is_raised_here():
    with pytest.raises(ValueError, match="invalid literal"):
        in_own_process(int, "x")
