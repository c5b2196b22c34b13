"""Commands that read folders of others, some file of which is damaged."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toys
from commands import at_site, fedgraph
from malformed import of_file
from matplotlib.figure import Figure

from fedgraph_flwr.results import trackers

SUMMARY, CONFIG, ROUNDS = "summary.json", "config.json", "rounds.csv"
MATRICES = "rounds/round-000001.safetensors"


# What each command reads, and the command.
TOOLS: dict[str, tuple[tuple[str, ...], Callable[[Path], object]]] = {
    "compare": (
        (SUMMARY, ROUNDS),
        lambda run: fedgraph(["compare", str(run)]),
    ),
    "figures": (
        (SUMMARY, "clusters.json", ROUNDS, MATRICES),
        lambda run: fedgraph(["figures", str(run)]),
    ),
    "predict": (
        ("models/model.json", "models/SHA256SUMS", "models/global.safetensors"),
        lambda run: at_site(
            f"predict {run / 'models'} /toys --test --client 0 --out {run}.csv".split()
        ),
    ),
    "report": (
        (SUMMARY, CONFIG, ROUNDS, "clusters.json", "ledger.csv", "times.csv"),
        lambda run: fedgraph(["report", str(run)]),
    ),
    "study": ((SUMMARY, ROUNDS), lambda run: fedgraph(["study", "gcfl", str(run)])),
    "track": (
        (CONFIG, ROUNDS, "ledger.csv", "times.csv"),
        lambda run: fedgraph(["track", str(run), "--to", "wandb"]),
    ),
    "watch": (
        (SUMMARY, CONFIG, ROUNDS, "ledger.csv", "times.csv", "metrics.prom"),
        lambda run: fedgraph(["watch", str(run), "--once"]),
    ),
}


class Kept:
    """A tracker that is installed."""

    place = "nowhere"

    def __init__(self, *_):
        pass

    def log(self, *_):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def tracker(monkeypatch):
    monkeypatch.setattr(trackers, "TRACKERS", {"wandb": (Kept, "json")})


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


def without_utf_8(path: Path) -> None:
    half = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[:half] + b"\xb9" + path.read_bytes()[half:])


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
        ("figures", lambda run: without_utf_8(run / ROUNDS)),
        ("track", lambda run: without_utf_8(run / "ledger.csv")),
    ],
)
def test_a_damaged_file_is_refused_by_name(copy, capsys, tool, damage):
    damage(copy)
    assert TOOLS[tool][1](copy) == 2
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


def replaced(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


WHOLE: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "no UTF-8": without_utf_8,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deep": lambda path: path.write_text('{"a":' + "[" * 100_000),
    "list": lambda path: path.write_text("[1]"),
    "huge": lambda path: path.write_text('{"rounds": 1' + "0" * 5000 + "}"),
    "columns": lambda path: path.write_text("round,client\n1,0\n"),
    "folder": lambda path: replaced(path, Path.mkdir),
    "loop": lambda path: replaced(path, lambda p: p.symlink_to(p.name)),
}
_VALUES = 25  # for each file


def damaged(run: Path, names: tuple[str, ...]) -> Iterator[str]:
    """Damage a file of a folder at a time, and say how; it is whole again after."""
    for name in names:
        path, rng = run / name, random.Random(name)
        whole = path.read_bytes()
        ways = [*WHOLE, *range(_VALUES)]
        for way in ways:
            if way in WHOLE:
                what = str(way)
                WHOLE[what](path)
            else:
                what, content = of_file(rng, name, whole)
                path.write_bytes(content)
            yield f"{name}: {what}"
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(whole)


def fails(act: Callable[[], object]) -> str:
    """Say what a command raises, other than a refusal; "" if it ends as it should."""
    try:
        code = act()
    except SystemExit as end:
        code = end.code
    except Exception as error:
        return repr(error)[:200]
    return (
        "" if code in (None, 0, 1, 2) or isinstance(code, str) else f"ends with {code}"
    )


def drawn_empty(_, place, **__):
    """In place of a figure, which takes long: an empty file, or an empty picture."""
    if isinstance(place, Path):
        place.touch()
    else:
        place.write("<svg ></svg>")


ENDED = [(tool, True) for tool in sorted(TOOLS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "has_ended"), [*ENDED, ("report", False), ("watch", False)]
)
def test_no_damage_ends_in_a_traceback(once, copy, monkeypatch, tool, has_ended):
    monkeypatch.setattr(Figure, "savefig", drawn_empty)
    names, act = TOOLS[tool]
    if tool == "predict":  # needs a model that is whole at the server
        shutil.rmtree(copy)
        shutil.copytree(once("fedavg", **{"shared-group": "all"}).path, copy)
    if not has_ended:
        (copy / SUMMARY).unlink()
        names = tuple(name for name in names if name != SUMMARY)
    assert act(copy) in (0, None)  # it is sound before
    found = {what: fails(lambda: act(copy)) for what in damaged(copy, names)}
    assert {what: words for what, words in found.items() if words} == {}


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_a_folder_that_may_not_be_read_is_refused(copy, capsys, tool):
    act = TOOLS[tool][1]
    fails(lambda: act(copy))  # imports what it needs
    capsys.readouterr()
    with toys.shut(copy.parent):
        assert act(copy) == 2
    told = capsys.readouterr().err
    assert str(copy) in told
    assert "Permission" in told
