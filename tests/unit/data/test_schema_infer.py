"""A schema from one site's tables: what it decides, and what it never tells."""

import own_files
import pytest

from datasets.own_data import build
from datasets.schema import to_toml
from datasets.schema_infer import infer_schema
from datasets.schema_read import read_schema
from fedgraph_flwr.errors import DataError
from fedgraph_flwr.seeding import numpy_rng
from fedgraph_flwr.site.__main__ import main


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


def test_smallest_and_largest_values_and_single_ones_are_not_told(tmp_path):
    folder = site(tmp_path, age=lambda i: 98765.25 if i == 7 else 1.125 * i)
    schema, _ = infer_schema(folder)
    text = to_toml(schema)
    for told in ("98765.25", "1.125", "43.875"):
        assert told not in text
    quiet, _ = infer_schema(folder, statistics=False)
    assert (quiet.features[0].shift, quiet.features[0].scale) == (0.0, 1.0)


def test_means_of_few_graphs_are_not_told(tmp_path):
    folder = site(tmp_path, age=lambda i: "" if i >= 8 else 71.5)  # of four graphs
    schema, notes = infer_schema(folder)
    assert (schema.features[0].shift, schema.features[0].scale) == (0.0, 1.0)
    assert any("a mean of so few" in note for note in notes)
    assert schema.features[0].missing == "indicator"


@pytest.mark.parametrize("odd", ["inf", "n/a", "1e999"])
def test_a_column_of_numbers_stays_one_whatever_stands_in_few_cells(tmp_path, odd):
    clean = {"age": lambda i: "" if i == 7 else 40 + i / 10}
    folder = site(tmp_path / "a", age=lambda i: odd if i == 7 else 40 + i / 10)
    schema, notes = infer_schema(folder)
    kept, _ = infer_schema(site(tmp_path / "b", **clean))
    age = schema.features[0]
    assert (age.kind, age.missing) == ("number", "refuse")
    assert (age.shift, age.scale) == (kept.features[0].shift, kept.features[0].scale)
    place = f"nodes.csv, line 9, column 'age': '{odd}'"
    told = f"age of nodes: 1 of 40 cells is no number ({place}); the column is taken"
    assert any(note.startswith(told) for note in notes)
    assert odd not in to_toml(schema)
    with pytest.raises(DataError, match=f"line 9, column 'age': must .* got '{odd}'"):
        build(folder, schema, bad_rows="refuse")


def test_a_table_of_nodes_is_called_so_in_any_layout(tmp_path):
    """In TU's the column was said to be of NAME_graph_indicator."""
    files = {
        "graph_indicator": [i // 2 + 1 for i in range(40)],
        "graph_labels": [i % 2 for i in range(20)],
        "node_attributes": ["x" if i == 7 else 40 + i / 10 for i in range(40)],
        "A": ["1, 2"],
    }
    for name, lines in files.items():
        (tmp_path / f"W_{name}.txt").write_text("\n".join(map(str, lines)) + "\n")
    _, notes = infer_schema(tmp_path)
    told = "node_attribute of nodes: 1 of 40 cells is no number (W_node_attributes.txt"
    assert any(note.startswith(told) for note in notes)


def test_codes_of_which_few_are_no_numbers_are_categories(tmp_path):
    folder = site(tmp_path, kind=lambda i: "A" if i % 10 == 0 else i % 3)
    schema, notes = infer_schema(folder, min_count=4)
    assert schema.features[1].categories == ("0", "1", "2", "A")
    assert not any("no number" in note for note in notes)


def test_numbers_whose_mean_is_none_are_not_scaled(tmp_path):
    folder = site(tmp_path, age=lambda i: ["1e308", "1.5e308"][i % 2])
    schema, notes = infer_schema(folder)
    assert (schema.features[0].shift, schema.features[0].scale) == (0.0, 1.0)
    assert "age of nodes is not scaled: its numbers are too large" in notes


def test_a_column_with_many_texts_is_none_of_numbers_and_is_told(tmp_path):
    """Also of values that are whole and all differ: an id with a gap is an id."""
    folder = site(tmp_path, age=lambda i: "NA" if i % 8 == 7 else 40 + i / 10)
    schema, notes = infer_schema(folder)
    assert [feature.column for feature in schema.features] == ["kind"]
    told = "age of nodes: 5 of 40 cells are no numbers (the first: nodes.csv, line 9,"
    assert any(note.startswith(told) for note in notes)
    folder = site(tmp_path / "ids", age=lambda i: "NA" if i in (3, 5) else 7 * i)
    schema, notes = infer_schema(folder)
    assert [feature.column for feature in schema.features] == ["kind"]
    assert any("look like an id" in note for note in notes)
    assert not any(
        "no number" in note for note in infer_schema(site(tmp_path / "c"))[1]
    )


@pytest.mark.parametrize(
    ("column", "rows", "value", "first"),
    [
        ("age", "nodes", lambda i: f"{36 + i // 20},5", "36,5"),  # seen often enough
        ("age", "nodes", lambda i: f"1.{100 + i},25", "1.100,25"),
        ("age", "nodes", lambda i: f"{36 + i},5" if i % 3 else 40, "37,5"),
        ("ylabel", "graphs", lambda i: f"-{i},5", "-0,5"),
    ],
)
def test_numbers_with_a_decimal_comma_are_told(tmp_path, column, rows, value, first):
    """They became categories, or free text, without a word of it."""
    quoted = {column: lambda i: f'"{value(i)}"'}
    _, notes = infer_schema(site(tmp_path, **quoted), min_count=1)
    told = [note for note in notes if "write a point in place of the comma" in note]
    assert len(told) == 1
    assert told[0].startswith(f"{column.lstrip('y')} of {rows}: ")
    assert f": '{first}')" in told[0]


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
    ("column", "one", "other"),
    [
        ("ylabel", "1", "1.0"),
        ("ylabel", "No", "no"),
        ("kind", "No", "no"),
        ("kind", "e\u0301", "\u00e9"),
        ("kind", "x", "\uff58"),
    ],
)
def test_names_that_look_alike_are_told(tmp_path, column, one, other):
    names = {column: lambda i: [one, other][i // 2 % 2]}
    _, notes = infer_schema(site(tmp_path, **names))
    told = f"{one!a} and {other!a} are different names; if"
    assert sum(told in note for note in notes) == 1
    _, notes = infer_schema(site(tmp_path / "other"))
    assert not any("different names" in note for note in notes)


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
    schema, _ = infer_schema(site(tmp_path, **answers))
    assert (schema.target_kind, schema.targets) == (kind, columns)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({"ylabel": None}, {}, r"line 1: has no column to predict"),
        ({"yz": lambda i: i / 7}, {}, r"cannot be predicted together as one kind"),
        ({}, {"kind": "binary"}, r"column 'label' must hold 0 or 1"),
        (
            {"ylabel": lambda i: "n/a" if i == 3 else i / 7},
            {"kind": "regression"},
            r"'label' must hold numbers \(not graphs.csv, line 5, .*: 'n/a'\)",
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


def test_one_graph(tmp_path):
    rng = numpy_rng(0, "x")
    rows = [
        f"a{i},{rng.normal():.3f},{['', 'ok', 'bad'][i % 3]},{'train' if i % 3 else ''}"
        for i in range(60)
    ]
    folder = own_files.write_graph(
        tmp_path,
        "\n".join(["node,v,label,split", *rows]) + "\n",
        "source,target\n",
        None,
    )
    schema, _ = infer_schema(folder)
    assert schema.dataset == "graph-csv"
    assert schema.classes == ("bad", "ok")
    assert [f.column for f in schema.features] == ["v"]
    with pytest.raises(DataError, match=r"needed; label more nodes, or lower --min"):
        infer_schema(folder, min_count=21)


def test_the_command(tmp_path, capsys):
    folder, out = site(tmp_path / "site"), tmp_path / "schema.toml"
    assert main(["schema", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "the schema tells its mean, about 42" in said
    assert "Read it, correct it, then give it to all sites." in said
    assert read_schema(out) == infer_schema(folder)[0]
    assert main(["schema", str(folder), "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["schema", str(tmp_path), "--out", str(out)]) == 2
    assert "name the folder of one client" in capsys.readouterr().err
    assert main(["schema", str(folder), "--out", "x", "--min-count", "0"]) == 2
