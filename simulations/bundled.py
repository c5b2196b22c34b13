"""The files of this project that a bundle of Flower may hold, without all others."""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.results.provenance import project_root

_ALWAYS = ("pyproject.toml", ".gitignore")
_KINDS = (".py", ".md")  # patterns that leave files out must find some


@contextmanager
def bundled_files() -> Iterator[Path]:
    """Copy them to a folder, from which ``flwr run`` makes the same bundle.

    Flower looks at every file below the folder that it is given before it leaves any
    out: those of the environment and of results take it seconds.
    """
    root = project_root()
    with (root / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["flwr"]["app"]["fab-include"]
    names = {pattern.strip("/").partition("/")[0] for pattern in patterns}
    with tempfile.TemporaryDirectory(prefix="fedgraph-bundle-") as scratch:
        copy = Path(scratch) / root.name
        copy.mkdir()
        for source in (root / name for name in sorted({*names, *_ALWAYS})):
            if source.is_dir():
                shutil.copytree(source, copy / source.name, ignore=_others)
            elif source.exists():
                shutil.copy2(source, copy)
        yield copy


def _others(folder: str, names: list[str]) -> list[str]:
    return [
        name
        for name in names
        if (path := Path(folder, name)).is_symlink()
        or name == "__pycache__"
        or not (path.is_dir() or path.suffix in _KINDS)
    ]
