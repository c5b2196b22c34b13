"""What a cell's text may mean: names that look alike, numbers with marks."""

import pytest

from datasets.tabular.cells import alike, by_look, readings, twin
from datasets.tabular.encode import encode_features, encode_targets, meaning
from datasets.tabular.schema_file import CATEGORY, Feature, Schema
from datasets.tabular.table import Rows


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("7", "7.0", True),
        ("7", "007", True),
        ("9007199254740993", "9007199254740992", False),  # one float
        ("Caf\u00e9", "Cafe\u0301", True),
        ("No", "no", True),
        ("a b", "a\u00a0 b", True),
        ("A-1", "A\u20131", True),  # a dash
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


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        ("3,633", "3633 3.633"),
        ("0,633", "0.633"),
        ("1.234.567,8", "1234567.8"),
        ("1\u2019000.5", "1000.5"),
        ("-\u20ac 3,50", "-3.50"),
        ("$1,234", "1234 1.234"),
        ("12,5 %", "12.5"),
        ("A1", ""),
        ("30 mg", ""),
        ("18-65", ""),
        ("1,2,3", ""),
    ],
)
def test_numbers_that_a_cell_may_mean(cell, numbers):
    assert list(readings(cell)) == numbers.split()
    assert not meaning(f"<{cell}")  # a limit means no number


@pytest.mark.parametrize(
    ("names", "cells", "codes"),
    [
        (("0", "1"), ["1.0", "True", "false", "1.00", ""], [1, 1, 0, 1, -1]),
        (("False", "True"), ["1", "TRUE", "0.0", "2"], [1, 1, 0, -1]),
        (("0", "1", "2"), ["2.0", "True"], [2, -1]),
        (("1.1", "1.2"), ["1.10", "1.2"], [-1, 1]),
        (("1", "1.0"), ["1", "1.0", "01"], [0, 1, -1]),
        (("a", "1"), ["1.0"], [-1]),
        (("retail", "other"), ["RETAIL", "shop"], [-1, -1]),
    ],
)
def test_a_class_may_be_spelled_as_another_program_does(names, cells, codes):
    schema = Schema(
        dataset="graph-csv",
        target_kind="classes",
        targets=("label",),
        classes=names,
        features=(Feature(column="k", kind=CATEGORY, categories=names, other=True),),
    )
    rows = Rows(range(len(cells)), {"label": cells, "k": cells})
    assert encode_targets(schema, rows, []).tolist() == codes
    flaws = []
    found = encode_features(schema.features, rows, flaws)
    odd = [row for row, _, _ in flaws]  # "" has no place, nor what looks like a name
    looks = by_look(names)
    assert odd == [
        row
        for row, (cell, code) in enumerate(zip(cells, codes, strict=True))
        if code < 0 and (not cell or twin(cell, looks))
    ]
    other = [len(names) if code < 0 else code for code in codes]
    assert [n for row, n in enumerate(found.tolist()) if row not in odd] == [
        n for row, n in enumerate(other) if row not in odd
    ]
    marks = Rows(range(1), {"k": ["NA"]})
    assert encode_features(schema.features, marks, []).tolist() == [len(names)]
