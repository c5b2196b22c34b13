"""Make the folder that is published on Flower Hub: ``python tests/lab/publish.py``.

Flower takes Python, TOML, Markdown, YAML and JSON from a folder. This command copies
what a user of the app needs of that; plug-ins of your own stay. ``docs/hub.md`` becomes
the README. Pictures are left out of pages, and links to what is not published become
plain text.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

from fedgraph_flwr.core.command import command
from fedgraph_flwr.core.errors import StorageError
from fedgraph_flwr.core.files import project_root, whole_folder

NAME = "fedgraph-flwr"
_FOLDERS = (
    "clients",
    "datasets",
    "docs",
    "examples",
    "fedgraph_flwr",
    "plugins",
    "simulations",
    "strategies",
)
_FILES = (".gitignore", "LICENSE", "pyproject.toml")
_KINDS = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}  # of Flower Hub
_README, _README_SOURCE = "README.md", "docs/hub.md"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def publish(root: Path, target: Path) -> list[str]:
    """Write the published set of the project at ``root`` to a new folder.

    Returns its files.
    """
    if target.exists():
        raise StorageError(f"{target} exists: delete it, or name another folder")
    inside = (p for folder in _FOLDERS for p in (root / folder).rglob("*"))
    kept = [p for p in inside if p.suffix in _KINDS and not p.is_symlink()]
    kept += [path for name in _FILES if (path := root / name).exists()]
    found = sorted(path.relative_to(root).as_posix() for path in kept)
    sources = {
        _README if name == _README_SOURCE else name: name
        for name in found
        if not _is_own(name)
    }
    try:
        with whole_folder(target) as partial:
            for name, source in sources.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if name.endswith(".md"):
                    text = (root / source).read_text(encoding="utf-8")
                    text = relink(text, source, name, sources)
                    path.write_text(text, encoding="utf-8")
                else:
                    shutil.copyfile(root / source, path)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error}") from error
    return sorted(sources)


def _is_own(name: str) -> bool:
    """Whether a file is a plug-in of whoever publishes, or lies beside one."""
    return name.startswith("plugins/") and name != "plugins/__init__.py"


def relink(text: str, source: str, target: str, published: Collection[str]) -> str:
    """Adapt the links of a page that moves from ``source`` to ``target``.

    Paths are relative to the project. Links to what is not ``published`` become text,
    pictures go.
    """
    known = {*published, *(posixpath.dirname(name) for name in published)}

    def adapt(match: re.Match[str]) -> str:
        is_picture, words, address = match.groups()
        if re.match(r"[a-z]+:", address):
            return match[0]
        if is_picture:
            return ""
        path, mark, anchor = address.partition("#")
        if not path:
            return match[0]
        folder = posixpath.dirname(source)
        full = posixpath.normpath(posixpath.join(folder, path))
        full = _README if full == _README_SOURCE else full
        if full not in known:
            return words
        new = posixpath.relpath(full, posixpath.dirname(target) or ".")
        return f"[{words}]({new}{mark}{anchor})"

    return _LINK.sub(adapt, text)


@command
def main() -> int:
    """Write the set below the named folder, and say where."""
    parser = argparse.ArgumentParser(
        prog="python tests/lab/publish.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help=f"gets a folder {NAME}")
    target = parser.parse_args().folder / NAME
    files = publish(project_root(), target)
    sys.stdout.write(
        f"{len(files)} files in {target}; publish them with: flwr app publish"
        f" {target}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
