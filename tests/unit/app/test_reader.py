"""A run's record, and its CSV files, which may be large: read row by row."""

import csv
import random

import numpy as np
import pytest

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.results import run_file
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


def series_of(folder, **names):
    """Values by client and round."""
    found = read_series(folder, **names).items()
    return {client: values.dropna().to_dict() for client, values in found}


@pytest.mark.parametrize("seed", range(2))
def test_series_are_those_of_all_rows_of_that_name(tmp_path, seed):
    rows = some_rows(seed)
    write(tmp_path / "rounds.csv", rows)
    assert list(read_rows(tmp_path / "rounds.csv")) == [list(map(str, r)) for r in rows]
    for split, point, metric in {tuple(row[2:5]) for row in rows}:
        found = series_of(tmp_path, split=split, point=point, metric=metric)
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
    series = series_of(tmp_path, split="test", point="p", metric="accuracy")
    assert series == {0: {1: 0.25}}
    assert len(list(read_rows(tmp_path / "rounds.csv"))) == 1


def test_times_are_read_as_far_as_they_were_written(tmp_path):
    assert read_times(tmp_path) == []
    (tmp_path / "times.csv").write_text("header\n1,2.5,1.5,4\n2,3.5,1.")
    assert read_times(tmp_path) == [RoundTimes(1, 2.5, 1.5, 4.0)]
    (tmp_path / "times.csv").write_text("header\n1,2.5,1.5\n")
    with pytest.raises(DataError, match=r"times\.csv cannot be read"):
        read_times(tmp_path)


# The record -------------------------------------------------------------------------


def tables(path):
    return {name: (path / name).read_bytes() for name in run_file.COLUMNS}


def write_round(file, number, rows=(), checkpoint=None, **options):
    with file.writing(**options) as writing:
        times = [(number, 0.5, 0.25, 1e-7)]
        writing.add(number, {"rounds.csv": rows, "times.csv": times})
        if checkpoint is not None:
            writing.checkpoint(number, checkpoint, {"run": number})


def test_a_resumed_run_exports_what_a_run_at_once_does(tmp_path):
    """Whatever stood in the CSV files, and however often they were exported."""
    rows = [(*row[:5], float(row[5]), row[6]) for row in some_rows(1)]
    (tmp_path / "whole").mkdir()
    whole = run_file.RunFile(tmp_path / "whole")
    whole.begin()
    for number in range(1, 5):
        write_round(whole, number, rows[9 * number : 9 * number + 9])
    whole.export()
    (tmp_path / "part").mkdir()
    part = run_file.RunFile(tmp_path / "part")
    part.begin()
    for number in range(1, 4):
        write_round(part, number, rows[9 * number : 9 * number + 9])
        part.export()
    (tmp_path / "part" / "ledger.csv").write_bytes(b"9,9,te")  # a crash
    again = run_file.RunFile(tmp_path / "part")
    assert again.rows("rounds.csv", until=2) == rows[9:27]
    write_round(again, 3, rows[27:36], after=2)
    again.export()
    write_round(again, 4, rows[36:45])
    again.export()
    assert tables(tmp_path / "part") == tables(tmp_path / "whole")
    lines = tables(tmp_path / "whole")["rounds.csv"].decode().splitlines()
    header, first, *_ = csv.reader(lines)
    assert (header, first) == (HEADER, list(map(str, some_rows(1)[9])))


@pytest.mark.parametrize("part", [7, 2**28])
def test_two_checkpoints_are_kept_whole_whatever_their_size(
    tmp_path, monkeypatch, part
):
    monkeypatch.setattr(run_file, "_PART", part)
    file = run_file.RunFile(tmp_path)
    for number in (1, 2, 3):
        write_round(file, number, checkpoint={"w": np.full(9, number, np.float32)})
    assert file.checkpoints() == [2, 3]
    for number in (2, 3):
        arrays, facts = file.read(number, "")
        assert (arrays["w"] == number).all()
        assert facts == file.facts(number) == {"run": number}
    write_round(file, 3, after=2, checkpoint={})
    assert file.read(3, "")[0] == {}


def test_a_round_is_there_whole_or_not_at_all(tmp_path):
    file = run_file.RunFile(tmp_path)
    write_round(file, 1, checkpoint={})
    with pytest.raises(TypeError):
        write_round(file, 1, after=0, checkpoint={}, rows=[object()])
    assert (file.checkpoints(), len(file.rows("times.csv", until=9))) == ([1], 1)
