"""Files of arrays: what the format's own library reads, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from fedgraph_flwr.files import read_arrays, write_arrays
from fedgraph_flwr.safe import encode, encode_whole, plain

KINDS = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]


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


@pytest.mark.parametrize("about", [{}, {"about": 'x é " \n'}])
def test_bytes_are_those_that_the_library_writes(about):
    given = {n: np.array(a, order="C") for n, a in arrays().items() if n != "bigend"}
    assert b"".join(encode(plain(given), about)) == save(given, about or None)
    if not about:
        assert encode_whole(arrays()) == save(plain(arrays()))


def test_what_is_no_array_of_numbers_is_refused(tmp_path):
    with pytest.raises(TypeError, match="array 'z' is of type complex128, which safe"):
        write_arrays(tmp_path / "f", {"z": np.zeros(2, complex)})
    assert list(tmp_path.iterdir()) == []
