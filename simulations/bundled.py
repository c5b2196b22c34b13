"""The files of this project that a bundle of Flower may hold, without all others."""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgraph_flwr.core.files import project_root

_ALWAYS = ("pyproject.toml", ".gitignore")


@contextmanager
def bundled_files() -> Iterator[Path]:
    """Copy them to a folder, from which ``flwr run`` makes the same bundle.

    Flower looks at every file below the folder that it is given before it leaves any
    out: those of the environment and of results take it seconds. A project that does
    not say what its bundle includes is given as it is.
    """
    root = project_root()
    if not (patterns := _included(root)):
        yield root
        return
    names = {pattern.strip("/").partition("/")[0] for pattern in patterns}
    with tempfile.TemporaryDirectory(prefix="fedgraph-bundle-") as scratch:
        copy = Path(scratch) / root.name
        copy.mkdir()
        for name in sorted({*names, *_ALWAYS}):
            _copy(root / name, copy / name)
        yield copy


def _included(root: Path) -> list[str]:
    try:
        config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        return list(config["tool"]["flwr"]["app"]["fab-include"])
    except (OSError, ValueError, LookupError, TypeError):
        return []  # Flower says what is wrong with it


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, with links as links: Flower takes none."""
    if source.is_symlink():
        return
    if source.is_dir():
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target, symlinks=True, ignore=skipped)
    elif source.exists():
        shutil.copy2(source, target)
