"""A user's own molecules: CSV files, one per client."""

import logging
import re

import numpy as np
import pytest
import toys

import datasets
from datasets.molecules import warn_once
from datasets.own.smiles import build_from_csv, load_client_file
from fedgraph_flwr.core.data import SPLITS
from fedgraph_flwr.core.errors import ConfigError, DataError

ROWS = "name,smiles,toxic,active\na,CCO,1,0\nb,C,,1\n\nc,c1ccccc1,0,\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write files, then load client 0's: ``load({"a.csv": text}, **settings)``."""
    monkeypatch.setenv("FEDGRAPH_DATA", "/not/to/be/read")

    def start(files, client=0, *, of="", **changes):
        folder = tmp_path / "data"
        folder.mkdir(exist_ok=True)
        for name, text in files.items():
            (folder / name).write_bytes(
                text if isinstance(text, bytes) else text.encode()
            )
        return load_client_file(
            settings(folder / of, tmp_path / "cache", **changes), client
        )

    return start


def settings(path, cache, **changes):
    base = {"dataset": "smiles-csv", "partition": "auto", "num_clients": "auto"}
    base["csv_label_columns"] = "*"
    folders = {"data_dir": str(path), "cache_dir": str(cache)}
    return toys.run_settings(**{**base, **folders, **changes})


def chains(first, count=20, header="smiles,toxic,active"):
    """Molecules of ``first``, ``first`` + 1, ... carbon atoms."""
    lines = [f"{'C' * (first + r)},{r % 2},{r % 3 % 2}\n" for r in range(count)]
    return f"{header}\n" + "".join(lines)


# --- reading ---


@pytest.mark.parametrize(
    ("name", "first", "kind"),
    [
        ("MolWt", "16.04", "regression"),
        ("sex", "1", "binary"),
    ],
)
def test_no_column_is_predicted_without_a_word(load, caplog, name, first, kind):
    files = {"a.csv": f"smiles,toxic,{name}\nC,1,{first}\nCC,0,1\nCO,1,1\n"}
    told = rf"column\(s\) 'toxic', '{name}' hold numbers, nothing says which are labels"
    for columns, is_warned in (("", True), ("*", False), ("toxic", False)):
        warn_once.cache_clear()
        caplog.clear()
        load(files, csv_label_columns=columns, csv_label_kind=kind)
        assert bool(re.search(told, caplog.text)) is is_warned


@pytest.mark.parametrize(
    ("name", "ids", "taken"),
    [
        ("key", [*range(9, -1, -1)], False),  # whole numbers of ten rows, all different
        ("key", range(9), True),
        ("key", [*range(9), 0], True),
        ("", [0.5] * 10, False),
    ],
)
def test_a_column_that_numbers_the_rows_is_no_label(load, caplog, name, ids, taken):
    text = f"{name},smiles,y\n" + "".join(f"{i},CC,-1\n" for i in ids)
    found = load({"a.csv": text}, csv_label_kind="regression")
    assert found.tasks == ([name, "y"] if taken else ["y"])
    told = f"column(s) {name or 'without a name'} count rows"
    assert (told in caplog.text) == (not taken)
    if not name:
        return
    named = {"csv_label_columns": f"{name},y", "csv_label_kind": "regression"}
    assert load({"a.csv": text}, **named).tasks == [name, "y"]


# Cells of a column y, labels' kind, labels, and what is told of them.
CELLS = {
    "codes": (["5.1", "6.2", "7.3", "-1"], "regression", [5.1, 6.2, 7.3, -1], "are -1"),
    "marks": (["1.5", "NA", "unknown", "-2.5"], "regression", [1.5, None, None, -2.5],
              "are 'NA', and count as not known"),
    "first": (["NA", "1.5", "2.5", "3.5"], "regression", [None, 1.5, 2.5, 3.5], "'NA'"),
    "truth": (["True", "FALSE", "", "true"], "binary", [1, 0, None, 1], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_what_is_not_known_and_truth_values_are_read_as_in_tables(load, caplog, name):
    cells, kind, wanted, told = CELLS[name]
    rows = "".join(f"{'C' * (1 + r // 4)},{cells[r % 4]}\n" for r in range(40))
    found = load({"a.csv": "smiles,y\n" + rows}, csv_label_kind=kind)
    got = [None if np.isnan(v) else v for v in found.y[:4, 0].tolist()]
    assert got == pytest.approx(wanted)
    assert told in caplog.text


def test_columns_that_are_not_used_are_told(load, caplog):
    load({"a.csv": "smiles,y,note\nC,0,x\nCC,1,x\nCCC,0,x\n"})
    assert "a.csv: not used: column(s) note\n" in caplog.text
    load({"a.csv": "smiles,y,Split\nC,0,train\nCC,1,val\nCCC,0,test\n"})
    assert "column(s) Split; the split is drawn by split-seed and" in caplog.text


def test_file_by_hand(load):
    found = load({"a.csv": ROWS})
    assert found.tasks == ["toxic", "active"]  # names are no numbers
    expected = [[1, 0], [np.nan, 1], [0, np.nan]]
    assert np.array_equal(found.y, expected, equal_nan=True)
    assert found.y.dtype == np.float32
    assert found.row.tolist() == [0, 1, 2]
    assert np.diff(found.node_ptr).tolist() == [3, 1, 6]
    assert isinstance(found.y, np.memmap)


BAD = ROWS + "d,C(C,1,1\ne,CN(C)(C)(C)C,0,1\nf,CC,0\ng,,0,1\n"
BAD += "h,CCC,1,1\n" * 5


def test_bad_rows_are_left_out_and_listed(load, caplog):
    caplog.set_level(logging.WARNING, "flwr.fedgraph")
    found = load({"a.csv": BAD})
    assert len(found) == 8
    assert found.row.tolist() == [0, 1, 2, 7, 8, 9, 10, 11]
    assert found.y[3].tolist() == [1, 1]
    unused, text = caplog.messages
    assert unused.endswith("a.csv: not used: column(s) name")
    first, *lines = text.splitlines()
    assert re.fullmatch(r"4 of 12 rows of .*a.csv cannot be used:", first)
    starts = [
        "line 6: not a SMILES string",
        "line 7: Explicit valence",
        "line 8: 3 cells, the header has 4",
        "line 9: no atoms",
    ]
    for line, start in zip(lines, starts, strict=True):
        assert line.strip().startswith(start)


def test_an_error_names_the_first_five_bad_rows(load):
    message = "line 10: not a SMILES string; and 4 more; correct .*csv-bad-rows"
    text = ROWS + "x,nonsense,1,1\n" * 9 + "y,CC,1,1\n" * 15
    with pytest.raises(DataError, match=message):
        load({"a.csv": text}, csv_bad_rows="refuse")


NAMED = {"csv_label_columns": "a,b"}
NUMBERS = {"csv_label_kind": "regression"}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("", {}, r"a.csv, line 1: is empty; its first line must name the columns"),
        ("smiles,toxic\nC(,1\n", {}, r"a.csv has no usable row"),
        ("SMILE,toxic\nC,1\n", {}, r"'smiles'. Did you mean 'SMILE'\?.*csv-smiles-col"),
        (
            "smiles,y\nC,1\n",
            NAMED | {"csv_label_columns": "Y"},
            r"mean 'y'\?.*-label",
        ),
        ("smiles,name\nC,first\n", {}, r"no column of numbers beside 'smiles'"),
        ("smiles,y\nC,1\nCC,yes\n", {}, r"line 3, column 'y': .* 0 or 1, .*got 'yes'"),
        ("smiles,toxic\nC,1\n\nCC,2\n", {}, r"line 4, .* got '2'; .*to 'regression'"),
        ("smiles,v\nC,1\nCC,1e39\n", NUMBERS, r"a finite number, .* got '1e39'"),
        ("smiles,toxic\nC,1\nCC,0\n", {}, r"2 usable molecule\(s\).* at least 3"),
        (ROWS, {"csv_label_columns": "toxic,name"}, r"line 2, column 'name'.*got 'a'"),
        ("smiles,a,b\nC,,\nCC,,\nCCC,,\n", NAMED, r"client 0 has no label at all: col"),
    ],
)
def test_what_can_be_wrong_with_a_file(load, text, changes, message):
    with pytest.raises(DataError, match=message):
        load({"a.csv": text}, of="a.csv", **changes)


def test_missing_places(load, tmp_path):
    load({"molecules.csv": ROWS})
    with pytest.raises(DataError, match=r"no file or folder .*; correct data-dir"):
        load({}, of="molecule.csv")
    (tmp_path / "data" / "sub").mkdir()
    with pytest.raises(DataError, match=r"sub has no .csv file"):
        load({}, of="sub")
    with pytest.raises(ConfigError, match=r"your own files, but data-dir is empty"):
        load_client_file(toys.run_settings(dataset="smiles-csv"), 0)


# --- one file per client ---


def test_a_folder_has_one_file_for_each_client(load):
    files = {"b.CSV": chains(3), "a.csv": chains(1), ".c.csv": "", "notes.txt": ""}
    for client in range(2):
        found = load(files, client, num_clients=2)
        assert found.node_ptr[1] == (1, 3)[client]  # sorted by name
    with pytest.raises(ConfigError, match=r"2 .csv file\(s\), .*is 3; set num-clients"):
        load(files, num_clients=3)


def test_files_of_a_folder_must_agree(load):
    other = chains(1, header="smiles,toxic,other")
    message = r"b.csv has the label columns \['toxic', 'other'\], but a.csv has"
    with pytest.raises(DataError, match=message):
        load({"a.csv": chains(1), "b.csv": other}, num_clients=2)
    assert load({}, num_clients=2, csv_label_columns="toxic").tasks == ["toxic"]


def test_a_task_may_be_missing_at_a_client(load):
    half = "smiles,a,b\nC,1,\nCC,0,\nCCC,1,\n"
    named = {"csv_label_columns": "a,b", "num_clients": 2}
    files = {"a.csv": half, "b.csv": half.replace("1,", ",1")}
    assert np.isnan(load(files, **named).y[:, 1]).all()


def test_a_client_is_the_same_in_simulation_and_at_its_site(tmp_path):
    """In a folder of all clients' files, or by a path to its own under another name."""
    folder, site = tmp_path / "all", tmp_path / "elsewhere"
    folder.mkdir()
    site.mkdir()
    for client in range(3):
        text = chains(2 * client + 1, 20 + client)
        (folder / f"site-{client}.csv").write_text(text)
        (site / f"own-{9 - client}.csv").write_text(text)
    cache = tmp_path / "cache"
    for client in range(3):
        simulated, own = (
            datasets.load_partition(settings(path, cache, num_clients=3), client)
            for path in (folder, site / f"own-{9 - client}.csv")
        )
        assert simulated.split_hash == own.split_hash
        assert simulated.source == f"site-{client}.csv"
        assert own.source == f"own-{9 - client}.csv"
        assert simulated.graphs.raw_sha256 == own.graphs.raw_sha256
        assert simulated.tasks == own.tasks == ("toxic", "active")
        for name in ("x", "y", "edge_index", "node_ptr", "edge_ptr"):
            both = (getattr(p.graphs, name) for p in (simulated, own))
            assert np.array_equal(*both)
        sizes = [len(own.positions(split)) for split in SPLITS]
        assert sizes == [[16, 2, 2], [16, 2, 3], [17, 2, 3]][client]
        together = np.concatenate([own.positions(split) for split in SPLITS])
        assert sorted(together) == list(range(20 + client))


ROLES = ["train", "test", "val"] * 4
RINGS = ("C", "CC", "CO", "C1CC1", "CC1CC1", "c1ccccc1")  # of three scaffolds


@pytest.mark.parametrize(
    ("roles", "changes", "found"),
    [
        (["x", *ROLES[1:]], {}, [[3, 6, 9], [2, 5, 8, 11], [1, 4, 7, 10]]),
        (ROLES, {"held_out": 0.0}, [[*range(12)], [], []]),
        (["0", "1"] * 6, {}, "no usable row.*split' must be .*got '0'"),
        (["train", "test"] * 6, {}, "'split' of .*a.csv names nothing val"),
        (ROLES, {"split": "scaffold"}, "'scaffold' cannot decide .* as column 'split'"),
        ([], {"split": "scaffold"}, [[0, 1, 2, 6, 7, 8], [3, 4, 9, 10], [5, 11]]),
    ],
)
def test_splits_that_are_not_drawn(tmp_path, roles, changes, found):
    """A column ``split`` is no label; scaffolds stay together."""
    ends = [f",{role}" for role in roles] or [""] * 12
    rows = [f"{RINGS[r % 6]},{r % 5 % 2}{ends[r]}" for r in range(12)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["smiles,y" + ",split" * bool(roles), *rows]))
    run = settings(path, tmp_path, **{"num_clients": 1, **changes})
    datasets.check_settings(run)
    if isinstance(found, str):
        with pytest.raises(DataError, match=found):
            datasets.load_partition(run, 0)
        return
    made = datasets.load_partition(run, 0)
    assert made.tasks == ("y",)
    parts = (made.graph_ids[made.positions(split)].tolist() for split in SPLITS)
    assert list(parts) == found


def test_a_file_that_changes_while_it_is_read_is_refused(load, monkeypatch):
    def slow(name, path, *args, **more):
        path.write_text(ROWS.replace("a,CCO", "a,CCN"))
        return build_from_csv(name, path, *args, **more)

    monkeypatch.setattr("datasets.own.smiles.build_from_csv", slow)
    with pytest.raises(DataError, match=r"a.csv has changed while it was read"):
        load({"a.csv": ROWS})


# --- settings ---


def test_one_file_in_the_run_config_is_one_clients():
    datasets.check_settings(settings("/some/a.csv", "/c"))
    with pytest.raises(ConfigError, match=r"'/some/a.csv' is one file.*data-path"):
        datasets.check_settings(settings("/some/a.csv", "/c", num_clients=2))
