"""Dialects of CSV files: what is read of their bytes, or why a file is refused."""

import gzip
import io

import own_files
import pandas as pd
import pytest

from datasets.own.graph_tables import build
from datasets.own.infer import infer_schema
from datasets.tabular.schema_file import read_schema
from datasets.tabular.table import read_rows
from fedgraph_flwr.core.errors import DataError

PLAIN = [["007", "2.5"], ["7", "-0.633"], ["1e5", ""], ["9007199254740993", "10"]]
TEXT = "id,sum\n007,2.5\n7,-0.633\n1e5,\n9007199254740993,10\n"
GERMAN = TEXT.replace(",", ";").replace(".", ",")
WELL = {  # bytes, and rows
    "commas": (TEXT.encode(), PLAIN),
    "a BOM, CRLF": (TEXT.replace("\n", "\r\n").encode("utf-8-sig"), PLAIN),
    "lone CR": (GERMAN.replace("\n", "\r").encode(), PLAIN),
    "semicolons, decimal commas": (GERMAN.encode(), PLAIN),
    "semicolons, points": (TEXT.replace(",", ";").encode(), PLAIN),
    "tabs": (GERMAN.replace(";", "\t").encode(), PLAIN),
    "UTF-16, tabs": (GERMAN.replace(";", "\t").encode("utf-16"), PLAIN),
    "UTF-16, big end first": (b"\xfe\xff" + GERMAN.encode("utf-16-be"), PLAIN),
    "gzip": (gzip.compress(GERMAN.encode("utf-8-sig")), PLAIN),
    "quoted marks, a line in a cell": (
        b'"id, or ""name""";sum\n"a;b";"2,5"\n"c\nd";3\n',
        [["a;b", "2.5"], ["c\nd", "3"]],
    ),
    "codes of texts keep commas": (
        b"id;dose\n1;0,5\n2;high\n",
        [["1", "0,5"], ["2", "high"]],
    ),
    "three decimals, as another column tells": (
        b"id;a;b\n1;3,633;2,5\n",
        [["1", "3.633", "2.5"]],
    ),
    "codes with points": (b"id;nace;sum\n1;64.19;2,5\n", [["1", "64.19", "2.5"]]),
    "one bad cell in ten": (
        b"id;sum\n" + b"1;2,5\n" * 9 + b"2;n.v.\n",
        [["1", "2.5"]] * 9 + [["2", "n.v."]],
    ),
}
ODD = {
    "both marks": (b"id;sum, EUR\n1;2\n", "line 1: has ',' and ';'.*in quotes"),
    "thousands": (
        b"id;sum\n1;2,5\n2;1.234,56\n",
        r"line 3, column 'sum': got '1\.234,56'",
    ),
    "thousands alone": (b"id;sum\n1;1.234,56\n", "nothing between thousands"),
    "both decimals": (
        b"id;sum\n1;2,5\n2;2.5\n",
        r"line 3, .*got '2\.5', beside decimal c",
    ),
    "what a comma means": (
        b"id;n\n1;20\n2;3,633\n",
        "line 3, .* may mean 3633 or 3.633",
    ),
    "what a point means": (
        b"id;n;m\n1;3.633;2,5\n",
        r"line 2, column 'n': '3\.633' may",
    ),
    "cp1252": (b"id,name\n1,a\n2,M\xfcller\n", "line 3: .*decode byte 0xfc.*as UTF-8"),
    "half a character": (GERMAN.encode("utf-16")[:-1], "line 5: .*truncated.*as UTF-8"),
    "UTF-16 without its mark": (GERMAN.encode("utf-16-le"), r"name 'i\\x00d\\x00"),
    "gzip cut off": (gzip.compress(TEXT.encode())[:-9], "cannot be read as CSV.*end"),
    "no gzip": (b"\x1f\x8b" + TEXT.encode(), "cannot be read as CSV"),
    "an open quote": (b'id;sum\n1;"2\n', "cannot be read as CSV"),
}


def write(folder, name, content):
    packed = content[:2] == b"\x1f\x8b"
    path = folder / f"{name}.csv{'.gz' * packed}"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", WELL)
def test_dialects_are_read(tmp_path, name):
    content, rows = WELL[name]
    found = read_rows(write(tmp_path, "t", content))
    assert [list(r) for r in zip(*found.cells.values(), strict=True)] == rows
    assert bool(found.told) is not name.startswith(("commas", "a BOM"))


@pytest.mark.parametrize("name", ODD)
def test_what_nobody_can_tell_is_refused_with_the_cure(tmp_path, name):
    content, words = ODD[name]
    with pytest.raises(DataError, match=words):
        read_rows(write(tmp_path, "t", content))


def test_a_reading_equals_pandas(tmp_path):
    path = write(tmp_path, "t", GERMAN.encode())
    plain = pd.read_csv(io.StringIO(GERMAN), sep=";", decimal=",", dtype={"id": str})
    cells = read_rows(path).cells
    assert list(cells["id"]) == list(plain["id"])
    assert pd.to_numeric(pd.Series(cells["sum"])).equals(plain["sum"])


def test_own_tables_in_other_dialects_are_the_same_graphs(tmp_path):
    plain = own_files.write(tmp_path / "a")
    other = own_files.write(tmp_path / "b", nodes=None, edges=None)
    nodes = own_files.NODES.replace(",", ";").replace("10", "10,0")
    write(other, "nodes", nodes.encode("utf-16"))
    write(other, "edges", gzip.compress(own_files.EDGES.replace(",", "\t").encode()))
    schema = read_schema(plain / "schema.toml")
    one, two = (build(folder, schema)[0] for folder in (plain, other))
    assert (one.x == two.x).all()
    assert (one.edge_index == two.edge_index).all()
    assert two.remarks[0] == (
        "nodes.csv: cells are separated by ';'; decimal commas of age are read as"
        " points"
    )
    assert infer_schema(other, min_count=1)[1][:2] == two.remarks[:2]
