"""Do tests find faults? ``python tests/lab/mutants.py [--only NAME] [--jobs N]``.

Puts each fault of ``mutants.toml`` into a copy of the tree, runs the fast tests that
the table names for that file, and says which faults they killed and which survived.
The copy is of what git knows. Exits with 0 if all were killed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".toml")
HOME = "tests/unit/client_side"  # of tests that the table names without a folder
LIMIT_S = 600  # a fault that makes a test wait for ever is found, too


@dataclass(frozen=True)
class Fault:
    """One line of the table."""

    file: str
    tests: tuple[str, ...]
    name: str
    old: str
    new: str
    promise: str

    def changed(self) -> str:
        """Text of the file with the fault; "" if ``old`` does not stand there once."""
        text = (ROOT / self.file).read_text()
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else ""


def faults(only: str) -> Iterator[Fault]:
    """Faults whose name holds ``only``."""
    for part in tomllib.loads(TABLE.read_text())["of"]:
        tests = tuple(os.path.normpath(f"{HOME}/{name}") for name in part["tests"])
        for row in part["faults"]:
            if only in row[0]:
                yield Fault(part["file"], tests, *row)


def copy_tree(to: Path) -> None:
    """Copy what git knows, as it is now."""
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def outcome(fault: Fault) -> str:
    """Say "killed" by which test, "survived", or that the table is out of date."""
    changed = fault.changed()
    if not changed:
        return "stale"
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy_tree(Path(folder))
        Path(folder, fault.file).write_text(changed)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-m", "not slow"]
        given = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*command, "-p", "no:cacheprovider", *fault.tests],
                cwd=folder,
                env=given,
                check=False,
                timeout=LIMIT_S,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return "killed by time"
    by = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and by:
        return f"killed by {by[1]}"
    return "survived" if not done.returncode else f"not run: {done.stdout[-500:]}"


def main() -> int:
    """Run the faults and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--check", action="store_true", help="only read the table")
    given = parser.parse_args()
    chosen = list(faults(given.only))
    stale = [f.name for f in chosen if not f.changed()]
    if given.check:
        print(f"{len(chosen)} faults, out of date: {', '.join(stale) or 'none'}")
        return bool(stale)
    started, found = time.monotonic(), []
    with ThreadPoolExecutor(given.jobs) as pool:
        for fault, said in zip(chosen, pool.map(outcome, chosen), strict=True):
            print(f"{fault.name} ({fault.promise}): {said}", flush=True)
            found.append(said)
    killed = sum(said.startswith("killed") for said in found)
    print(f"{killed} of {len(found)} killed in {time.monotonic() - started:.0f} s")
    return killed < len(found)


if __name__ == "__main__":
    sys.exit(main())
