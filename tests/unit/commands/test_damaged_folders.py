"""Commands that read folders of others, some file of which is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import toys
from commands import fedgraph

SUMMARY, CONFIG, ROUNDS = "summary.json", "config.json", "rounds.csv"
TOOLS = {
    "compare": "compare {run}",
    "figures": "figures {run}",
    "predict": "site predict {run}/models /toys --test --client 0 --out {run}.csv",
    "report": "report {run}",
    "study": "study gcfl {run}",
    "watch": "watch {run} --once",
}


def look(tool: str, run: Path) -> int:
    """Type the command for a folder."""
    return fedgraph(TOOLS[tool].format(run=run).split())


@pytest.fixture(scope="module")
def finished(once):
    return once("fedgkd").path


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def table(name: str, **changes: object) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def unfinished(run: Path) -> None:
    (run / SUMMARY).unlink()
    table(CONFIG, **{"num-server-rounds": "many"})(run)


def without_utf_8(run: Path) -> None:
    path, content = run / ROUNDS, (run / ROUNDS).read_bytes()
    path.write_bytes(content[:99] + b"\xb9" + content[99:])


def a_round_that_is_none(run: Path) -> None:
    path = run / ROUNDS
    path.write_text(path.read_text().replace("\n0,0,test", "\nnan,0,test"))


@pytest.mark.parametrize(
    ("tool", "damage"),
    [
        ("watch", unfinished),
        ("compare", table(SUMMARY, rounds=[1])),
        ("compare", table(SUMMARY, final={"per_client": {"0": {"a": 1}}})),
        ("compare", table(SUMMARY, config={"num-clients": [1]})),
        ("compare", a_round_that_is_none),
        ("figures", table("clusters.json", rounds={"1": 3, "2": 4})),
        ("figures", without_utf_8),
    ],
)
def test_a_damaged_file_is_refused_by_name(copy, capsys, tool, damage):
    damage(copy)
    assert look(tool, copy) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"{copy}" in told
    assert "cannot be read" in told or "unknown rule" in told


def test_compare_names_the_damaged_one_of_several(finished, copy, capsys):
    table(SUMMARY, rounds=[1], seed=3)(copy)
    assert fedgraph(["compare", str(finished), str(copy)]) == 0
    out, err = capsys.readouterr()
    assert f"not used: {copy} cannot be read" in err
    assert str(finished) not in err
    assert "fedgkd" in out


@pytest.mark.parametrize("tool", TOOLS)
def test_a_folder_that_may_not_be_read_is_refused(copy, capsys, tool):
    look(tool, copy)  # imports what it needs
    capsys.readouterr()
    with toys.shut(copy.parent):
        assert look(tool, copy) == 2
    told = capsys.readouterr().err
    assert str(copy) in told
    assert "Permission" in told
