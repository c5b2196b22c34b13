"""Writes named arrays in the format of safetensors, without copying them.

The library of the format copies each array once or twice, and takes several times as
long. What it writes is the same, byte for byte. It reads what is written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
_Layout: TypeAlias = tuple[tuple[str, np.dtype[np.generic], tuple[int, ...]], ...]

# Types of numbers, in the order in which the library sorts them, and their names there.
_NAMES = {
    **{"bool": "BOOL", "uint8": "U8", "int8": "I8"},
    **{"int16": "I16", "uint16": "U16", "float16": "F16"},
    **{"int32": "I32", "uint32": "U32", "float32": "F32"},
    **{"float64": "F64", "int64": "I64", "uint64": "U64"},
}
_ABOUT = "__metadata__"  # what the format calls texts about the arrays
_RANKS = {name: rank for rank, name in enumerate(_NAMES)}


def encode(arrays: Arrays, about: Mapping[str, str]) -> list[bytes | memoryview]:
    """Encode named arrays, and texts about them.

    Parameters
    ----------
    arrays : mapping of str to array
        As :func:`plain` makes them.
    about : mapping of str to str
        At most one: of several, the library would read them in any order.

    Returns
    -------
    list of bytes and memoryviews
        Parts of the encoding, to be written one after the other.

    Raises
    ------
    TypeError
        An array is of no type of numbers that is written here.
    """
    names, entries = _entries(tuple((n, a.dtype, a.shape) for n, a in arrays.items()))
    texts = [f'"{_ABOUT}":{_json(about)}'] if about else []
    head = ("{" + ",".join([*texts, *entries]) + "}").encode()
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little"), head, *(arrays[n].data for n in names)]


def encode_whole(arrays: Arrays) -> bytes:
    """Encode arrays of any layout, in one piece."""
    return b"".join(encode(plain(arrays), {}))


def plain(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """Arrays each of which is one piece of memory, as processors of today order it.

    Raises
    ------
    TypeError
        A name is none that the format can have.
    """
    for name in arrays:
        if not isinstance(name, str) or name == _ABOUT:
            raise TypeError(
                f"an array is named {name!r}, expected a text other than {_ABOUT!r};"
                " name it otherwise"
            )
    given = {n: np.asarray(a) for n, a in arrays.items()}
    return {
        n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in given.items()
    }


@lru_cache(256)  # clients of a run have arrays of few layouts
def _entries(layout: _Layout) -> tuple[list[str], list[str]]:
    """Names in the order of their bytes, and what the head says of each."""
    # The largest numbers first, so that each lies at a multiple of its size.
    ordered = sorted(layout, key=lambda a: (-_RANKS.get(a[1].name, 0), a[0]))
    entries, end = [], 0
    for name, kind, shape in ordered:
        if kind.name not in _NAMES:
            raise TypeError(
                f"array {name!r} is of type {kind}, expected one of"
                f" {', '.join(_NAMES)}; convert it"
            )
        begin, end = end, end + kind.itemsize * int(np.prod(shape, dtype=np.int64))
        about = {
            "dtype": _NAMES[kind.name],
            "shape": list(shape),
            "data_offsets": [begin, end],
        }
        entries.append(f"{_json(name)}:{_json(about)}")
    return [name for name, _, _ in ordered], entries


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
