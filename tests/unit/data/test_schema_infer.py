"""A schema from one site's tables: what it decides, and what it never tells."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import own_files
import pytest
from commands import at_site

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.own.new_items import load_new
from datasets.tabular.schema_file import read_schema, to_toml
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.seeding import numpy_rng
from fedgraph_flwr.resolve import defaults, resolve


def site(folder, **columns):
    """Write 20 graphs of two nodes; columns of graphs begin with "y"."""
    made = {
        "ylabel": lambda i: ["no", "yes"][i % 2],
        "age": lambda i: f"{40 + i / 10}",
        "kind": lambda i: ["x", "y"][i // 2 % 2],
        **columns,
    }
    of_graphs = {k[1:]: f for k, f in made.items() if k.startswith("y") and f}
    of_nodes = {k: f for k, f in made.items() if not k.startswith("y") and f}
    graphs = [
        ",".join([f"g{i}", *(str(f(i)) for f in of_graphs.values())]) for i in range(20)
    ]
    nodes = [
        ",".join([f"g{i // 2}", f"n{i % 2}", *(str(f(i)) for f in of_nodes.values())])
        for i in range(40)
    ]
    return own_files.write(
        folder,
        "\n".join([",".join(["graph", *of_graphs]), *graphs]) + "\n",
        "\n".join([",".join(["graph", "node", *of_nodes]), *nodes]) + "\n",
        "graph,source,target\n",
        None,
    )


def test_the_schema_fits_the_data_it_is_made_from(tmp_path):
    folder = site(tmp_path)
    schema, _ = infer_schema(folder)
    data, *_ = build(folder, schema, bad_rows="refuse")
    assert len(data.row) == 20
    age, kind = schema.features
    assert (age.shift, age.scale) == (42.0, 1.2)  # 41.95 and 1.154, two digits of each
    assert kind.categories == ("x", "y")
    assert not kind.other
    assert schema.classes == ("no", "yes")


def test_rare_categories_and_classes_are_not_named(tmp_path):
    folder = site(
        tmp_path,
        ylabel=lambda i: "plague" if i == 3 else ["no", "yes"][i % 2],
        kind=lambda i: "leper" if i in (4, 5) else "x",
    )
    with pytest.raises(DataError, match=r"has 1 class\(es\) .*lower --min-count"):
        infer_schema(folder)
    schema, notes = infer_schema(folder, min_count=9)
    text = to_toml(schema)
    assert "plague" not in text
    assert "leper" not in text
    assert schema.features[1].other
    assert any("1 class(es) that fewer than 9 graphs have" in note for note in notes)


def test_a_category_counts_by_graphs_not_by_nodes(tmp_path):
    """A category that stands many times in one graph is that graph's own."""
    folder = site(tmp_path)
    rows = "".join(f"g0,m{i},1.5,own\n" for i in range(100))
    with (folder / "nodes.csv").open("a") as handle:
        handle.write(rows)
    schema, _ = infer_schema(folder)
    assert schema.features[1].categories == ("x", "y")
    assert schema.features[1].other


def test_pairs_in_both_directions_count_within_a_graph(tmp_path):
    ends = ["g0,n0,n1", "g0,n1,n0", "g1,n0,n1", "g2,n1,n0", "g2,n1,n0", "g2,n1,n1"]
    rows = "".join(f"{pair},0.{k}\n" for k, pair in enumerate(ends))
    (site(tmp_path) / "edges.csv").write_text(f"graph,source,target,w\n{rows}")
    told = "\n".join(infer_schema(tmp_path)[1])
    assert "2 of 4 pairs stand there in both directions" in told
    assert "1 row(s) repeat a pair" in told
    assert "1 row(s) join a node to itself" in told


def test_smallest_and_largest_values_and_single_ones_are_not_told(tmp_path):
    folder = site(tmp_path, age=lambda i: 98765.25 if i == 7 else 1.125 * i)
    schema, _ = infer_schema(folder)
    text = to_toml(schema)
    for told in ("98765.25", "1.125", "43.875"):
        assert told not in text
    quiet, _ = infer_schema(folder, statistics=False)
    assert (quiet.features[0].shift, quiet.features[0].scale) == (0.0, 1.0)


def test_means_of_few_graphs_are_not_told(tmp_path):
    folder = site(tmp_path, age=lambda i: "" if i >= 8 else 71 + i)  # of four graphs
    schema, notes = infer_schema(folder)
    assert (schema.features[0].shift, schema.features[0].scale) == (0.0, 1.0)
    assert any("a mean of so few" in note for note in notes)
    assert schema.features[0].missing == "indicator"


@pytest.mark.parametrize("odd", ["inf", "high", "1e999"])
def test_a_column_of_numbers_stays_one_whatever_stands_in_few_cells(tmp_path, odd):
    clean = {"age": lambda i: "" if i == 7 else 40 + i / 10}
    folder = site(tmp_path / "a", age=lambda i: odd if i == 7 else 40 + i / 10)
    schema, notes = infer_schema(folder)
    kept, _ = infer_schema(site(tmp_path / "b", **clean))
    age = schema.features[0]
    assert (age.kind, age.missing) == ("number", "refuse")
    assert (age.shift, age.scale) == (kept.features[0].shift, kept.features[0].scale)
    place = f"nodes.csv, line 9, column 'age': '{odd}'"
    told = f"age of nodes.csv: 1 of 40 cells are no numbers (the first: {place}); the"
    assert any(note.startswith(told) for note in notes)
    assert odd not in to_toml(schema)
    with pytest.raises(DataError, match=f"line 9, column 'age': must .* got '{odd}'"):
        build(folder, schema, bad_rows="refuse")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (lambda i: f"{36 + i},5", "'36,5', which may mean 36.5"),  # seen often
        (lambda i: f"3,{633 + i}", "'3,633', which may mean 3633 or 3.633"),
        (lambda i: f"{i % 12 + 1:02d}/{i % 9 + 1:02d}/2024", "'01/01/2024')"),
    ],
)
def test_what_is_written_as_no_number_or_date_is_told(tmp_path, value, told):
    """They became categories or free text; the advice made 3,633 to 3.633."""
    quoted = {"age": lambda i: f'"{value(i)}"'}
    _, notes = infer_schema(site(tmp_path / "a", **quoted), min_count=2)
    (note,) = [note for note in notes if "cells are no numbers" in note]
    assert told in note
    assert "nothing between thousands" in note
    target = site(tmp_path / "b", ylabel=quoted["age"])
    with pytest.raises(DataError, match=r"two are needed .*nothing between thousands"):
        infer_schema(target, min_count=2)


@pytest.mark.parametrize(
    "value",
    [
        lambda i: 1_662_000_000 + 3600 * (i * i % 23),
        lambda i: f"2024-01-{i % 19 + 1:02d}",
        lambda i: f"2024-01-{i % 19 + 1:02d}T0{i % 7}:30:00.5+02:00",
    ],
)
def test_numbers_and_dates_far_from_0_are_centred(tmp_path, value):
    """A mean of two digits left Unix times 81 deviations away; days were categories."""
    folder = site(tmp_path, age=value)
    schema, notes = infer_schema(folder)
    age = schema.features[0]
    assert age.kind == ("date" if isinstance(value(0), str) else "number")
    assert f"{age.shift}" in to_toml(schema)
    x = build(folder, schema, bad_rows="refuse")[0].x[:, 0]
    assert abs(x.mean()) < 0.11
    assert 0.9 < x.std() < 1.1
    assert any("the schema tells its mean" in note for note in notes)
    if age.kind == "date":
        other = site(tmp_path / "other", age=lambda i: f"{i % 12 + 1:02d}/01/2024")
        with pytest.raises(DataError, match="must be a date such as 2024-01-31"):
            build(other, schema, bad_rows="refuse")
    quiet, _ = infer_schema(folder, statistics=False)
    x = build(folder, quiet, bad_rows="refuse")[0].x[:, 0]
    assert age.kind == "number" or abs(x).max() < 40  # years from 2020


@pytest.mark.parametrize("mark", ["NA", "\\N", "Not Determined"])
def test_marks_of_what_is_not_known_are_told_and_are_no_class(tmp_path, mark):
    rows = [
        f"a{i},{mark if i % 4 == 1 else i / 7},{[mark, 'ok', 'bad'][i % 3]},"
        f"{[mark, 'x', 'y'][i % 3]}"
        for i in range(60)
    ]
    text = "\n".join(["node,v,label,kind", *rows]) + "\n"
    folder = own_files.write_graph(tmp_path, text, "source,target\n", None)
    schema, notes = infer_schema(folder)
    assert schema.classes == ("bad", "ok")
    assert [f.kind for f in schema.features] == ["number", "category"]
    assert schema.features[1].categories == ("x", "y")
    for column in ("label", "kind"):
        told = f"{column} of nodes.csv: 20 of 60 cells (33.3%) are {mark!r}, and count"
        assert any(note.startswith(told) for note in notes)
    data, *_ = build(folder, schema, bad_rows="refuse")
    assert ((data.y < 0) == [i % 3 == 0 for i in range(60)]).all()
    assert (data.x[:, 1] == [i % 4 == 1 for i in range(60)]).all()  # the indicators
    assert (data.x[:, 4] == [i % 3 == 0 for i in range(60)]).all()
    assert len(data.remarks) == 3
    known = replace(schema, classes=("bad", "ok", mark))  # as the schema says
    data, *_ = build(folder, known, bad_rows="refuse")
    assert (data.y >= 0).all()
    assert len(data.remarks) == 2


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        (lambda i: [-999, 9999][i % 2] if i % 4 < 2 else 100 + i, "-999 9999"),
        (lambda i: [-1, 0, 1, 2][i % 4], "-1"),
        (lambda i: 10.0 ** (i / 4), ""),
    ],
)
def test_a_number_far_from_all_others_that_many_rows_share_is_told(
    tmp_path, values, codes
):
    schema, notes = infer_schema(site(tmp_path, age=values), min_count=5)
    told = [note for note in notes if "far from all others" in note]
    codes = codes.split()
    assert len(told) == len(codes)
    assert all(f"%) are {c}, and" in note for c, note in zip(codes, told, strict=True))
    data, *_ = build(tmp_path, schema)
    if schema.features[0].kind == "number":
        assert len(data.remarks) == len(codes)


@pytest.mark.parametrize("value", [4711, "x", "2024-01-07"])
@pytest.mark.parametrize("is_there", [1, 2])
def test_a_column_with_one_value_is_left_out(tmp_path, value, is_there):
    cells = {"age": lambda i: value if i % is_there == 0 else ""}
    schema, notes = infer_schema(site(tmp_path, **cells))
    told = any("age of nodes is not used: it has one value" in note for note in notes)
    may_tell = is_there == 2 and value == "x"
    assert told is not may_tell
    assert ("age" in to_toml(schema)) is may_tell


@pytest.mark.parametrize(
    ("values", "is_constant"),
    [
        (lambda i: "0.9999999999999999" if i % 2 else "1.0", True),
        (lambda i: 1e9 + 0.5 + (i % 20) * 1e-3, True),
        (lambda i: i % 10 if i < 18 else 4711, True),  # of nine graphs
        (lambda i: i % 10 if i < 20 else 4711, False),
        (lambda i: 1 if i == 7 else 0, False),  # needs no scaling
    ],
)
def test_a_spread_of_rounding_or_of_few_rows_is_none(tmp_path, values, is_constant):
    """The other site's 0.7 became 1e16, and its code 98230 became 1,317,169."""
    schema, notes = infer_schema(site(tmp_path, age=values))
    assert ("age" not in [f.column for f in schema.features]) is is_constant
    assert any("it has one value in all rows" in note for note in notes) is is_constant


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"age": lambda i: 100 * (40 + i / 10)}, "age of nodes.csv: encoded by the"),
        ({"kind": lambda i: "Z" if i % 3 else "x"}, "kind of nodes.csv: 65% of rows"),
        ({"kind": lambda i: "Z" if i % 3 == 1 else "x"}, ""),
        ({"age": lambda i: 44 + i / 10}, ""),
    ],
)
def test_another_scale_or_spelling_than_the_schema_knows_is_told(
    tmp_path, caplog, columns, told
):
    mine = {"kind": lambda i: "rare" if i < 3 else "x"}
    schema, _ = infer_schema(site(tmp_path / "a", **mine))
    assert not build(tmp_path / "a", schema, bad_rows="refuse")[0].remarks
    doubts = build(site(tmp_path / "b", **(mine | columns)), schema)[0].remarks
    assert [d.startswith(told) for d in doubts] == [True] * bool(told)
    own = {**defaults(), "method": "fedavg", "dataset": "graphs-csv"}
    load_new(resolve(own).settings, tmp_path / "b", [], schema=to_toml(schema))
    assert all(doubt in caplog.text for doubt in doubts)  # of what is predicted, too
    twins = {"kind": lambda i: "X" if i == 7 else "x"}  # is no other
    with pytest.raises(DataError, match=r"line 9, .*'X' is none .*'x' looks alike"):
        build(site(tmp_path / "c", **twins), schema, bad_rows="refuse")


def test_csv_and_parquet_files_of_one_table_give_one_schema_and_one_encoding(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    count, rng = 60, numpy_rng(0, "x")
    days = [datetime(2024, 1, 1 + i % 28, i % 24, tzinfo=UTC) for i in range(count)]
    columns = {
        "node": [f"a{i}" for i in range(count)],
        "vip": [i % 3 == 0 for i in range(count)],
        "whole": [None if i % 7 == 0 else float(i * i % 41) for i in range(count)],
        "price": [Decimal(f"{i * i % 37}.50") for i in range(count)],
        "day": [day.date() for day in days],
        "time": days,
        "kind": pa.array(["xy"[i % 2] for i in range(count)]).dictionary_encode(),
        "noise": rng.normal(size=count).round(3).tolist(),
        "label": [None if i % 5 == 0 else float(i % 2) for i in range(count)],
    }
    cells = [
        [str(v) for v in getattr(c, "to_pylist", lambda c=c: c)()]
        for c in columns.values()
    ]
    rows = [
        ",".join(columns),
        *(",".join(row).replace("None", "") for row in zip(*cells, strict=True)),
    ]
    csv = own_files.write_graph(
        tmp_path / "csv", "\n".join(rows) + "\n", "source,target\n", None
    )
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    pq.write_table(pa.table(columns), parquet / "nodes.parquet")
    (parquet / "edges.csv").write_text("source,target\n")
    schema, _ = infer_schema(csv)
    assert to_toml(schema) == to_toml(infer_schema(parquet)[0])
    assert schema.classes == ("0", "1")
    kinds = ["number"] * 3 + ["date"] * 2 + ["category", "number"]
    assert [f.kind for f in schema.features] == kinds
    one, two = (build(f, schema, bad_rows="refuse")[0] for f in (csv, parquet))
    assert (one.x == two.x).all()
    assert (one.y == two.y).all()
    assert set(one.y) >= {0, 1}


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("patient", lambda i: 1000 + 7 * i),
        ("patient", lambda i: f"Jane Doe {i}"),
        ("ypatient", lambda i: 1000 - 7 * i),
    ],
)
def test_identifiers_are_neither_features_nor_targets(tmp_path, column, values):
    schema, notes = infer_schema(site(tmp_path, **{column: values}))
    assert "patient" not in to_toml(schema)
    assert "Doe" not in to_toml(schema)
    assert any("patient" in note for note in notes)


def test_the_answer_is_no_feature_of_nodes(tmp_path):
    """A table of nodes that was joined with that of graphs tells it."""
    answer = {"label": lambda i: ["no", "yes"][i // 2 % 2], "split": lambda _: "train"}
    schema, notes = infer_schema(site(tmp_path, **answer))
    assert [f.column for f in schema.features] == ["age", "kind"]
    assert sum("is not used: so is called what" in note for note in notes) == 2


@pytest.mark.parametrize(
    ("answers", "kind", "columns"),
    [
        ({"ylabel": lambda i: i % 2}, "classes", ("label",)),
        ({"ylabel": lambda i: "" if i == 0 else i % 2}, "binary", ("label",)),
        ({"ylabel": lambda i: i / 7}, "regression", ("label",)),
        ({"ylabel": lambda i: i % 2, "yz": lambda _: 1}, "binary", ("label", "z")),
        (
            {"ylabel": lambda i: i % 2, "yz": lambda i: i / 7},
            "regression",
            ("label", "z"),
        ),
        ({"ysplit": lambda _: "train"}, "classes", ("label",)),
    ],
)
def test_kinds_of_targets(tmp_path, answers, kind, columns):
    folder = site(tmp_path, **answers)
    schema, _ = infer_schema(folder, targets=["*"])
    assert (schema.target_kind, schema.targets) == (kind, columns)
    if len(columns) == 1:
        assert infer_schema(folder)[0] == schema
    else:
        with pytest.raises(DataError, match=r"'label', 'z' may all .*--targets \('\*'"):
            infer_schema(folder)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({"ylabel": None}, {}, r"line 1: has no column to predict"),
        (
            {"yz": lambda i: i / 7},
            {"targets": ["*"]},
            r"cannot be predicted together as one kind",
        ),
        ({}, {"kind": "binary"}, r"column 'label' must hold 0 or 1"),
        (
            {"ylabel": lambda i: "high" if i == 3 else i / 7},
            {"kind": "regression"},
            r"'label' must hold numbers .*graphs.csv, line 5, .*: 'high'\)",
        ),
        ({}, {"targets": ["graph"]}, r"none of graph, node, split, got 'graph'"),
        ({"yz": lambda _: 1}, {"targets": ["z", "z"]}, r"each column once.* got 'z'"),
        ({}, {"targets": ["labels"]}, r"no column 'labels'. Did you mean 'label'"),
    ],
)
def test_what_no_schema_can_be_made_of(tmp_path, columns, more, message):
    with pytest.raises(DataError, match=message):
        infer_schema(site(tmp_path, **columns), **more)


def test_nodes_without_features_have_degrees(tmp_path):
    schema, notes = infer_schema(site(tmp_path, age=None, kind=None))
    assert schema.degree == 16
    assert any("degrees" in note for note in notes)


def test_the_command(tmp_path, capsys):
    folder, out = site(tmp_path / "site"), tmp_path / "schema.toml"
    assert at_site(["schema", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "the schema tells its mean, about 42" in said
    assert "Read it, correct it, then give it to all sites." in said
    assert read_schema(out) == infer_schema(folder)[0]
    assert at_site(["schema", str(folder), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert at_site(["schema", str(tmp_path), "--out", str(out)]) == 2
    assert "name the folder of one client" in capsys.readouterr().err
    assert at_site(["schema", str(folder), "--out", "x", "--min-count", "0"]) == 2
