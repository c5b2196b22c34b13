"""Files of arrays: what the format's own library reads, and what it refuses."""

from __future__ import annotations

import json
import os
import stat
import threading

import numpy as np
import pytest
import toys
from safetensors.numpy import load_file

from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.files import (
    inert,
    is_there,
    make_private,
    names_in,
    read_arrays,
    write_arrays,
    write_npz,
)

KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8"]


def arrays() -> dict[str, np.ndarray]:
    """Make arrays of every type, of many shapes, in no order."""
    rng = np.random.default_rng(0)
    found = {f"of {kind}": rng.integers(0, 2, (2, 3)).astype(kind) for kind in KINDS}
    return found | {
        'é"\\/\n\x01\u2028': np.arange(5.0),
        "a scalar": np.array(3.5, "f4"),
        "nothing": np.empty((0, 4), "f4"),
        "columns": np.arange(12.0).reshape(3, 4)[:, ::2],
        "turned": np.arange(6, dtype="i4").reshape(2, 3).T,
        "odd": np.array([True, False, True]),
        "bigend": np.arange(4, dtype=">i8"),
    }


def test_the_library_of_the_format_reads_what_is_written(tmp_path):
    write_arrays(tmp_path / "f", arrays(), "a text")
    found, given = load_file(tmp_path / "f"), arrays()
    again, meta = read_arrays(tmp_path / "f", "file", "cure")
    assert meta == "a text"
    assert set(found) == set(again) == set(given)
    for name, array in given.items():
        for read in (found[name], again[name]):
            np.testing.assert_array_equal(read, array)
            assert read.dtype == array.dtype.newbyteorder("<")


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        {"w": ONE, "v": ONE},  # else a small file could fill the memory
        {"w": ONE, "v": ONE | {"data_offsets": [4, 12]}},
        {"w": ONE, "v": ONE | {"data_offsets": [12, 20]}},
        *({"w": ONE | {"data_offsets": o}} for o in ([8, 0], [0, 80], [-8, 0], [0, 4])),
        *({"w": ONE | {"shape": s}} for s in ([-1], 2, None, [3], [2**70], [True, 2])),
        {"w": ONE | {"dtype": "BF16"}},
        *({"w": one} for one in (None, [], {})),
        *([], None, 5, "about"),
    ],
)
def test_arrays_are_what_the_header_says_or_refused(tmp_path, monkeypatch, header):
    path, text = tmp_path / "f", json.dumps(header)
    if isinstance(header, dict):  # a stranger knows how checksums are made
        monkeypatch.setattr("fedgraph_flwr.core.files._checksum", lambda *_: "sum")
        text = json.dumps(header | {"__metadata__": {"about": '["sum", ""]'}})
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(8))
    with pytest.raises(DataError, match=r"file .*/f cannot be read: .*; cure"):
        read_arrays(path, "file", "cure")


@pytest.mark.parametrize("content", [b"", b"1234567", bytes(8), b"\xff" * 8 + b"{}"])
def test_a_file_without_a_header_is_refused(tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(DataError, match=r"file .*/f cannot be read: .*; cure"):
        read_arrays(tmp_path / "f", "file", "cure")


def test_what_cannot_be_seen_is_not_taken_for_absent(tmp_path):
    folder = tmp_path / "kept"
    (folder / "state").mkdir(parents=True)
    assert is_there(folder / "state")
    assert names_in(folder, "st*") == ["state"]
    assert (is_there(folder / "none"), names_in(folder / "none")) == (False, [])
    with toys.shut(folder):
        for look in (is_there, names_in):
            with pytest.raises(PermissionError):
                look(folder / "state")


def test_only_the_owner_may_read_a_file(tmp_path):
    path, before = tmp_path / "f", os.umask(0)
    try:
        write_arrays(path, {"w": np.ones(3)})
        write_npz(tmp_path / "npz", {"w": np.ones(3)})
    finally:
        os.umask(before)
    for written in (path, tmp_path / "npz"):
        assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_a_private_folder_is_entered_by_its_user_alone(tmp_path):
    """Those above it too, if they are made; one that is there is left as it is."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    make_private(tmp_path / "there" / "a" / "b")
    make_private(tmp_path / "there")
    for name, mode in (("there", 0o755), ("there/a", 0o700), ("there/a/b", 0o700)):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == mode
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(OSError, match="file"):
            make_private(tmp_path / path)


def test_writers_of_one_file_leave_it_whole(tmp_path):
    """Also threads, and processes of two containers that have one number."""
    sizes, path = (10, 5000), tmp_path / "f"

    def write(size: int) -> None:
        for _ in range(60):
            write_arrays(path, {"w": np.full(size, size)})

    threads = [threading.Thread(target=write, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(len(read_arrays(path, "file", "cure")[0]["w"]))
    assert seen <= set(sizes)
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


FORMULAS = ["=1", "+a", "-a", "@SUM(1)", " =1", "\u00a0=1", "\n=1", "\ta", "\uff1d1"]
FORMULAS += ["\uff20a", "\u200b=1", "\ufeff-a"]


@pytest.mark.parametrize("cell", FORMULAS)
def test_no_cell_begins_as_a_formula(cell):
    assert inert(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["", "a=1", "-1.5", " -1e3", "1", " a", 3, -2.5])
def test_other_cells_stay_as_they_are(cell):
    assert inert(cell) == cell
