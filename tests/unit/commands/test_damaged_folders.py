"""Commands that read folders of others, some file of which is damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from simulations import compare, figures, watch

TOOLS = {
    "compare": lambda run: compare.main([str(run)]),
    "figures": lambda run: figures.main([str(run)]),
    "watch": lambda run: watch.main([str(run), "--once"]),
}


@pytest.fixture(scope="module")
def finished(once):
    return once("gcfl+").path


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def table(name: str, **changes: object) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        path = run / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def unfinished(run: Path) -> None:
    (run / "summary.json").unlink()
    table("config.json", **{"num-server-rounds": "many"})(run)


def without_utf_8(run: Path) -> None:
    path = run / "rounds.csv"
    path.write_bytes(path.read_bytes().replace(b"post_", b"post\xb9"))


def a_round_that_is_none(run: Path) -> None:
    path = run / "rounds.csv"
    path.write_text(path.read_text().replace("\n0,0,test", "\nnan,0,test"))


@pytest.mark.parametrize(
    ("tool", "damage"),
    [
        ("watch", unfinished),
        ("watch", table("summary.json", rounds=[1])),
        ("compare", table("summary.json", rounds=[1])),
        ("compare", table("summary.json", rules=["{{7*7}}"])),
        ("compare", table("summary.json", final={"per_client": {"0": {"a": 1}}})),
        ("compare", table("summary.json", config={"num-clients": [1]})),
        ("compare", a_round_that_is_none),
        ("compare", without_utf_8),
        ("figures", table("clusters.json", rounds={"1": 3, "2": 4})),
        ("figures", table("clusters.json", rounds={"x": []})),
        ("figures", table("clusters.json", rounds=[1])),
        ("figures", without_utf_8),
    ],
)
def test_a_damaged_file_is_refused_by_name(copy, capsys, tool, damage):
    damage(copy)
    assert TOOLS[tool](copy) == 2
    told = capsys.readouterr().err
    assert f"{copy}" in told
    assert "cannot be read" in told or "unknown rule" in told


def test_compare_names_the_damaged_one_of_several(finished, copy, capsys):
    table("summary.json", rounds=[1], seed=3)(copy)
    assert compare.main([str(finished), str(copy)]) == 0
    out, err = capsys.readouterr()
    assert f"not used: {copy} cannot be read" in err
    assert str(finished) not in err
    assert "gcfl+" in out
