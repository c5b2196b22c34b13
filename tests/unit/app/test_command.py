"""Commands say in one way why they cannot do what is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fedgraph_flwr.core.command import STOPPED, UNABLE, command
from fedgraph_flwr.core.errors import DataError
from fedgraph_flwr.core.words import BY_HAND

ROOT = Path(__file__).parents[3]
# What other processes start, without this package or without a user who reads.


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no file a[/x] of [red]", "no file a[/x] of [red]"),  # markup of a library
        ("\x1b[2Jgone\nand on", "\\x1b[2Jgone\nand on"),  # what commands a terminal
    ],
)
def test_an_error_is_said_as_it_is_and_harmless(text, told, capsys):
    @command
    def main() -> int:
        raise DataError(text)

    assert main() == UNABLE == 2
    assert capsys.readouterr() == ("", f"error: {told}\n")


HELD = """
import os, signal, sys, tempfile
from fedgraph_flwr.core.command import command

signal.signal(signal.SIGINT, {on_ctrl_c})
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` has it ignored
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)

@command
def main():
    with tempfile.TemporaryDirectory() as folder:
        os.kill(os.getpid(), signal.{sign})
        signal.pause()

code = main()
assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)) == before
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("sign", "on_ctrl_c"),
    [
        ("SIGINT", "signal.default_int_handler"),
        ("SIGHUP", "signal.default_int_handler"),
        ("SIGTERM", "signal.SIG_IGN"),  # as a shell leaves it to what runs beside it
    ],
)
def test_a_command_that_is_stopped_says_so_and_tidies_up(tmp_path, sign, on_ctrl_c):
    """SIGTERM and SIGHUP left what `site baseline` knows of a site's data in TMPDIR."""
    done = subprocess.run(
        [sys.executable, "-c", HELD.format(sign=sign, on_ctrl_c=on_ctrl_c)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        STOPPED,
        "",
        f"{BY_HAND}\n",
    )
    assert not list(tmp_path.iterdir())


SPEAKS = """
import sys
from fedgraph_flwr.core.command import command

@command
def main():
    for number in range(100000):
        print(number)
    return 1

sys.exit(main())
"""


def test_a_command_whose_reader_has_ended_ends_too():
    """`head` reads as much as it wants; a traceback would follow."""
    line = f"set -o pipefail; {sys.executable} -c '{SPEAKS}' | head -1"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (UNABLE, "0\n", "")


def test_there_is_one_command():
    tops = ("simulations", "fedgraph_flwr", "clients", "strategies", "datasets")
    files = [f for top in tops for f in ROOT.glob(f"{top}/**/*.py")]
    doors = {f.name for f in files if '__name__ == "__main__"' in f.read_text()}
    assert doors == {"cli.py", "resident_worker.py"}


def test_an_environment_that_is_missing_or_was_moved_is_named_with_the_cure(tmp_path):
    clone, moved = tmp_path / "clone", tmp_path / "moved"
    clone.mkdir()
    shutil.copy(ROOT / "env.sh", clone)

    def source(folder: Path) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", ". ./env.sh; echo $?"]
        environment = {"PATH": "/usr/bin:/bin"}
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )

    assert "nothing is installed in" in source(clone).stderr
    venv.create(clone / ".venv")
    assert source(clone).stdout == "0\n"
    clone.rename(moved)
    done = source(moved)
    assert f"was installed as {clone}/.venv, and does not work" in done.stderr
    assert done.stdout == "1\n"
