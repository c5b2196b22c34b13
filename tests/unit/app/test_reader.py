"""CSV files of a run, which may be large: read row by row, and checked in parts."""

import csv
import random

import pytest

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results import checkpoints
from fedgraph_flwr.results.checkpoints import GrowingFiles
from fedgraph_flwr.results.reader import RoundTimes, read_rows, read_series, read_times

HEADER = ["round", "client", "split", "point", "metric", "value", "num_examples"]
ODD = ["accuracy", "a,b", 'a"b', "test", "loss,test", "ä", ""]


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *rows])


def some_rows(seed):
    draw = random.Random(seed)
    names = [[draw.choice(ODD) for _ in range(3)] for _ in range(5)]
    return [
        [n, c, *draw.choice(names), repr(draw.random()), 7]
        for n in range(6)
        for c in range(9)
    ]


@pytest.mark.parametrize("seed", range(8))
def test_series_are_those_of_all_rows_of_that_name(tmp_path, seed):
    rows = some_rows(seed)
    write(tmp_path / "rounds.csv", rows)
    assert list(read_rows(tmp_path / "rounds.csv")) == [list(map(str, r)) for r in rows]
    for split, point, metric in {tuple(row[2:5]) for row in rows}:
        found = read_series(tmp_path, split=split, point=point, metric=metric)
        expected = {}
        for number, client, *names, value, _ in rows:
            if names == [split, point, metric]:
                expected.setdefault(client, {})[number] = float(value)
        assert found == expected
        assert list(found) == sorted(found)


def test_a_torn_row_is_no_value_though_its_start_is_a_number(tmp_path):
    write(tmp_path / "rounds.csv", [[1, 0, "test", "p", "accuracy", "0.25", 7]])
    with (tmp_path / "rounds.csv").open("a") as file:
        file.write("2,0,test,p,accuracy,0.7")
    series = read_series(tmp_path, split="test", point="p", metric="accuracy")
    assert series == {0: {1: 0.25}}
    assert len(list(read_rows(tmp_path / "rounds.csv"))) == 1


def test_times_are_read_as_far_as_they_were_written(tmp_path):
    assert read_times(tmp_path) == []
    (tmp_path / "times.csv").write_text("header\n1,2.5,1.5,4\n2,3.5,1.")
    assert read_times(tmp_path) == [RoundTimes(1, 2.5, 1.5, 4.0)]
    (tmp_path / "times.csv").write_text("header\n1,2.5,1.5\n")
    with pytest.raises(DataError, match=r"times\.csv cannot be read"):
        read_times(tmp_path)


def test_no_file_has_no_rows(tmp_path):
    assert list(read_rows(tmp_path / "rounds.csv")) == []
    assert read_series(tmp_path, split="a", point="b", metric="c") == {}


@pytest.mark.parametrize("part", [1, 7, 2**20])
def test_rows_up_to_a_mark_whatever_came_after_it(tmp_path, monkeypatch, part):
    monkeypatch.setattr(checkpoints, "_PART", part)
    rows, names = some_rows(1), ("rounds.csv", "ledger.csv")
    files = GrowingFiles(tmp_path, dict.fromkeys(names, ()))
    for name in names:
        files.append(name, [HEADER, *rows[:20]])
    marks = files.marks()
    files.append("rounds.csv", rows[20:])
    with (tmp_path / "ledger.csv").open("ab") as file:
        file.write(b"9,9,te")  # a crash

    again = GrowingFiles(tmp_path, dict.fromkeys(names, ()))
    again.check(marks, "cure")
    for name in names:
        found = list(again.rows(name, marks[name]))
        assert found == [list(map(str, row)) for row in rows[:20]]
    again.cut(marks)
    for row in rows[20:]:
        again.append("rounds.csv", [row])
    assert again.marks()["rounds.csv"] == files.marks()["rounds.csv"]
    assert again.marks()["ledger.csv"] == marks["ledger.csv"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[:-1],
        lambda _: b"",
        lambda text: text.replace(b"7", b"8", 1),
        lambda text: b" " + text,
    ],
)
def test_a_file_that_begins_otherwise_than_its_mark_says_is_refused(tmp_path, harm):
    files = GrowingFiles(tmp_path, {"rounds.csv": ()})
    files.append("rounds.csv", [HEADER, *some_rows(2)])
    marks, path = files.marks(), tmp_path / "rounds.csv"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(DataError, match=r"rounds\.csv does not begin with the .* cure"):
        GrowingFiles(tmp_path, {"rounds.csv": ()}).check(marks, "cure")


def test_empty_lines_are_no_rows(tmp_path):
    write(tmp_path / "rounds.csv", [[1, 0, "test", "p", "accuracy", "0.25", 7]])
    with (tmp_path / "rounds.csv").open("a") as file:
        file.write("\n\r\n")
    assert len(list(read_rows(tmp_path / "rounds.csv"))) == 1
