"""Commands say in one way why they cannot do what is asked."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fedgraph_flwr.command import UNABLE, command
from fedgraph_flwr.errors import DataError

ROOT = Path(__file__).parents[3]
# What other processes start, without this package or without a user who reads.
STARTED = {"peer_driver.py", "resident_worker.py", "supernode.py"}


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


def test_every_command_says_errors_so():
    files = [
        f
        for top in ("simulations", "fedgraph_flwr")
        for f in ROOT.glob(f"{top}/**/*.py")
    ]
    commands = [f for f in files if '__name__ == "__main__"' in f.read_text()]
    plain = set()
    for file in commands:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == "main":
                said = [ast.unparse(d) for d in node.decorator_list]
                plain |= {file.name} if said != ["command"] else set()
    assert len(commands) > 25
    assert plain <= STARTED
