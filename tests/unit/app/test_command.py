"""Commands say in one way why they cannot do what is asked."""

from __future__ import annotations

import os
import shutil
import signal
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


def test_what_is_no_refusal_is_not_hidden():
    @command
    def main(code: int) -> int:
        return [0, 1][code]

    assert main(1) == 1
    with pytest.raises(IndexError):
        main(2)


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
        ("SIGTERM", "signal.default_int_handler"),
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


NOHUP = """
import os, signal, sys
from fedgraph_flwr.core.command import command

signal.signal(signal.SIGHUP, signal.SIG_IGN)

@command
def main():
    os.kill(os.getpid(), signal.SIGHUP)
    return 0

sys.exit(main())
"""


def test_a_command_under_nohup_outlives_its_terminal():
    done = subprocess.run([sys.executable, "-c", NOHUP], check=False, timeout=60)
    assert done.returncode == 0


TWICE = """
import signal, sys, tempfile
from fedgraph_flwr.core.command import command

@command
def main():
    with tempfile.TemporaryDirectory():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            print("tidied up")

sys.exit(main())
"""


def test_the_second_sigterm_of_timeout_does_not_end_the_tidying_up(tmp_path):
    """`timeout` sends one to the command and one to its group; a folder stayed."""
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (STOPPED, "tidied up\n"), done.stderr
    assert not list(tmp_path.iterdir())


IN_ANOTHER = """
import os, signal, sys, tempfile, time
from fedgraph_flwr.core.command import command, handled_signals
from fedgraph_flwr.core.process import in_own_process

@handled_signals()
def hold(parent):
    with tempfile.TemporaryDirectory(prefix="held-"):
        os.kill(parent, signal.SIGTERM)
        time.sleep(60)

@command
def main():
    in_own_process(hold, os.getpid())

if __name__ == "__main__":
    sys.exit(main())
"""


def test_what_a_command_does_in_another_process_is_stopped_with_it(tmp_path):
    """SIGTERM at `--plan` alone waited until they were done."""
    script, folder = tmp_path / "held.py", tmp_path / "folder"
    script.write_text(IN_ANOTHER)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=45,
    )
    assert (done.returncode, done.stderr) == (STOPPED, f"{BY_HAND}\n")
    assert not list(folder.glob("held-*"))


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii:strict", rb"r\udcffe \xb1"),
        ("ascii:surrogateescape", rb"r\udcffe \xb1"),  # of the locale C
        ("utf-8:strict", b"r\\udcffe \xc2\xb1"),
        ("utf-8:surrogateescape", b"r\\udcffe \xc2\xb1"),
    ],
)
def test_a_name_that_the_terminal_cannot_show_ends_no_command(encoding, shown):
    """`report` had written its page, and ended with a traceback for its path."""
    code = (
        "from fedgraph_flwr.core.command import command\n"
        "@command\ndef main():\n    print('r\\udcffe \\xb1')\n    return 0\n"
        "raise SystemExit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.rstrip()) == (0, shown), done.stderr


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


def test_sigterm_does_what_ctrl_c_does_at_that_moment():
    """A run that Flower is being asked for must be stopped when Flower has it."""
    held = []

    @command
    def main() -> int:
        before = signal.signal(signal.SIGINT, lambda *_: held.append(1))
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGINT, before)
        return 0

    assert main() == 0
    assert held == [1]


def test_there_is_one_command():
    tops = ("simulations", "fedgraph_flwr", "clients", "strategies", "datasets")
    files = [f for top in tops for f in ROOT.glob(f"{top}/**/*.py")]
    doors = {f.name for f in files if '__name__ == "__main__"' in f.read_text()}
    assert doors == {"cli.py", "resident_worker.py"}


@pytest.fixture
def clone(tmp_path):
    """What a fresh clone is set up with, below a path of its own."""
    (tmp_path / "clone").mkdir()
    for name in ("Makefile", "env.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / "clone")
    return tmp_path / "clone"


def shell(clone: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line],
        cwd=clone,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_refuses_a_python_that_is_too_old(clone):
    old = clone / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.13\nexit 1\n')
    old.chmod(0o755)
    done = shell(clone, "make run PYTHON=./old-python")
    assert done.returncode == 2
    assert "Python 3.11 or later is needed, got Python 3.10.13: name" in done.stderr
    assert not (clone / ".venv").exists()


def test_an_environment_that_is_missing_or_was_moved_is_named_with_the_cure(clone):
    fresh = shell(clone, "make stop", PATH="/usr/bin:/bin")
    assert "nothing is installed in" in fresh.stderr
    assert "run `make run`" in fresh.stderr
    venv.create(clone / ".venv")
    assert shell(clone, ". ./env.sh && python -c 'import sys'").returncode == 0
    moved = clone.rename(clone.with_name("moved"))
    done = shell(moved, ". ./env.sh; echo $?; echo $PATH")
    assert f"was installed as {clone}/.venv, and does not work" in done.stderr
    assert done.stdout.splitlines() == ["1", os.environ["PATH"]]


def test_an_environment_that_is_active_already_is_used_if_flower_is_in_it(clone):
    active = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = ". ./env.sh && echo $FEDGRAPH_HOME $FLWR_HOME && command -v python"
    done = shell(clone, line, PATH=active)
    expected = [f"{clone} {clone}/.flwr", str(Path(sys.executable).parent / "python")]
    assert (done.stdout.splitlines(), done.stderr) == (expected, "")
    venv.create(clone / "bare")  # without Flower
    bare = shell(clone, line, PATH=f"{clone}/bare/bin:/usr/bin:/bin")
    assert "activate an environment of your own" in bare.stderr
    assert bare.stdout == ""


@pytest.mark.parametrize("program", ["bash", "dash"])
def test_a_clone_has_one_superlink_by_whichever_path_it_is_entered(clone, program):
    """Through a link it had a second one of the same folder, which `make stop` left."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    venv.create(clone / ".venv")
    link = clone.with_name("link")
    link.symlink_to(clone)
    tell = ". ./env.sh && echo $FLWR_HOME $FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
    told = [shell(clone, f"cd {at}; {program} -c '{tell}'") for at in (clone, link)]
    assert [done.stderr for done in told] == ["", ""]
    assert told[0].stdout == told[1].stdout
    assert told[0].stdout.startswith(f"{clone}/.flwr ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"no_proxy": "localhost"}, "localhost,127.0.0.1,localhost"),
        ({"NO_PROXY": ".org"}, ".org,127.0.0.1,localhost"),
        ({"no_proxy": "127.0.0.1,x", "NO_PROXY": "y"}, "127.0.0.1,x"),
    ],
)
def test_a_proxy_is_not_asked_for_the_superlink_of_this_machine(clone, before, after):
    venv.create(clone / ".venv")
    line = ". ./env.sh && . ./env.sh && echo $no_proxy $NO_PROXY"
    done = shell(clone, line, http_proxy="http://proxy:3128", **before)
    assert done.stdout.split() == [after, after]


def test_a_shell_that_was_another_clones_has_a_superlink_of_its_own(clone):
    other = clone.with_name("other")
    venv.create(clone / ".venv")
    venv.create(other / ".venv")
    shutil.copy(clone / "env.sh", other)
    tell = "echo $FLWR_HOME $FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
    alone = shell(other, f". ./env.sh; {tell}").stdout
    assert alone.startswith(f"{other}/.flwr ")
    assert shell(clone, f". ./env.sh; cd {other}; . ./env.sh; {tell}").stdout == alone
    first = "mv .venv .v; . ./env.sh; mv .v .venv"  # as before `make run`
    line = f". ./env.sh; cd {other}; {first}; . ./env.sh; {tell}"
    assert shell(clone, line).stdout == alone
    own = shell(clone, f". ./env.sh; cd {other}; . ./env.sh; {tell}", FLWR_HOME="/own")
    assert own.stdout.startswith("/own ")
