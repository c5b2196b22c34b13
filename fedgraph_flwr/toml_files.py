"""TOML files that users write, and values as they stand there."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path
from typing import Any

from .errors import ConfigError

_DEPTH = 20  # of tables and lists


def toml_value(value: bool | float | str) -> str:
    """Write a value of a run config as TOML does.

    JSON is alike, but escapes letters such as emoji in two halves, which TOML refuses.
    """
    is_beyond = isinstance(value, str) and max(value, default="") > "\uffff"
    return json.dumps(value, ensure_ascii=not is_beyond).replace("\x7f", "\\u007f")


def read_toml(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a TOML file that a user wrote.

    Parameters
    ----------
    path : Path
    content : bytes, optional
        Of the file, if it has been read before; then it is not read again.

    Raises
    ------
    ConfigError
        It cannot be read, is not UTF-8 or no TOML, has tables or lists nested deeper
        than anyone needs, or an int beyond 64 bits.
    """
    try:
        found = path.read_bytes() if content is None else content
        text = io.TextIOWrapper(io.BytesIO(found), encoding="utf-8-sig").read()
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; correct its name, or let the"
            " user of this process read it"
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: also UTF-8
        raise ConfigError(
            f"{path} is not valid TOML: {error}; correct it (UTF-8 text, as on toml.io)"
        ) from error
    level: list[Any] = [table]
    for _ in range(_DEPTH):
        parts = [v.values() if isinstance(v, dict) else v for v in level]
        values = [v for part in parts for v in part]
        if any(type(v) is int and not -(2**63) <= v < 2**63 for v in values):
            raise ConfigError(f"{path} has an int beyond 64 bits; correct it")
        level = [v for v in values if isinstance(v, dict | list)]
        if not level:
            return table
    raise ConfigError(
        f"{path} has tables or lists nested more than {_DEPTH} deep; flatten them"
    )
