"""The page of runs: what it says, what it escapes, how a browser shows it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedgraph_flwr import server_app
from fedgraph_flwr.resolve import defaults, resolve
from fedgraph_flwr.results.reader import load_summary
from fedgraph_flwr.view import html_report
from simulations.cli import main as fedgraph
from simulations.run import parse_assignment

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\x1b[31m\u202e"
)
_VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += f"{data}\n"


@pytest.fixture(scope="module")
def runs(run):
    """Two real runs on the same split and seed; the second trains alone."""
    settings = {"num-server-rounds": 3}
    with pytest.MonkeyPatch.context() as patch:  # other tests' runs make no report
        patch.setattr(server_app, "write_own_report", html_report.write_own_report)
        return run("fedavg", **settings).path, run("local", **settings).path


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the first run, to damage."""
    return Path(shutil.copytree(runs[0], tmp_path / "copy"))


def change(folder: Path, **changes: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def page_of(*folders: Path, out: Path) -> Page:
    return Page(html_report.write_report(folders, out).read_text(encoding="utf-8"))


def test_a_run_writes_its_own_report(runs):
    summary = json.loads((runs[0] / "summary.json").read_text())
    page = Page((runs[0] / "report.html").read_text(encoding="utf-8"))
    assert f"{summary['final']['mean']:.3f}" in page.words
    assert "model of the last round" in page.words
    assert summary["weights_sha256"] in page.words


def test_the_page_loads_nothing_and_runs_no_script(runs, tmp_path):
    page = page_of(*runs, out=tmp_path / "r.html")
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for _, a in page.tags if "href" in a} <= set(ids)


def test_gains_are_scores_less_those_of_training_alone(runs, copy, tmp_path):
    alone = json.loads((runs[1] / "summary.json").read_text())["final"]["per_client"]
    change(copy, final={**final_of(copy), "per_client": shifted(alone, 0.25, -0.5)})
    page = page_of(copy, runs[1], out=tmp_path / "r.html")
    assert f"1 of {len(alone)} clients gained, 1 lost" in page.words
    assert "client 1 has the lowest, -50.0" in page.words
    change(copy, seed=999)
    page = page_of(copy, runs[1], out=tmp_path / "r.html")
    assert "No completed run of method local" in page.words


def final_of(folder: Path) -> dict[str, object]:
    return load_summary(folder)["final"]


def shifted(scores: dict[str, float], *by: float) -> dict[str, float]:
    return {c: v + (by[int(c)] if int(c) < len(by) else 0.0) for c, v in scores.items()}


def test_what_sites_say_is_text(copy, tmp_path):
    failure = {"round": 1, "client": 0, "site": HOSTILE, "reason": HOSTILE}
    privacy = {"says": HOSTILE, "per_client": {"0": {"x": HOSTILE}}}
    change(
        copy,
        failures=[failure],
        sites={HOSTILE: [0]},
        error=HOSTILE,
        privacy=privacy,
        method=HOSTILE,
        metric=HOSTILE,
        git_commit=HOSTILE,
        config={"dataset": HOSTILE, HOSTILE: HOSTILE},
    )
    rows = (copy / "ledger.csv").read_text()
    hostile = HOSTILE.replace('"', '""')
    (copy / "ledger.csv").write_text(f'{rows}1,0,up,"{hostile}",5\r\n')
    page = page_of(copy, out=tmp_path / "r.html")
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.words  # as text
    assert "{{7*7}}" in page.words  # no template
    assert "\x1b" not in page.words
    assert "\u202e" not in page.words


def test_an_unfinished_run_is_shown_as_far_as_it_came(copy, tmp_path):
    (copy / "summary.json").unlink()
    with (copy / "rounds.csv").open("a") as file:
        file.write("9,0,te")  # killed while it wrote
    page = page_of(copy, out=tmp_path / "r.html")
    assert "was killed" in page.words
    assert "To go on after a stop, start it again with resume" in page.words
    assert "3 of 3" in page.words


def test_no_report_fails_a_run(copy, monkeypatch):
    told = []
    monkeypatch.setattr(html_report, "log", lambda *words: told.append(words))
    before = final_of(copy)
    change(copy, final="x")
    html_report.write_own_report(copy)
    change(copy, final=before)
    (copy / html_report.REPORT).unlink()
    (copy / html_report.REPORT).mkdir()  # cannot be replaced by a file
    html_report.write_own_report(copy)
    monkeypatch.setattr(html_report, "gather", lambda _: 1 / 0)
    html_report.write_own_report(copy)
    kinds = [words[4] for words in told]
    assert kinds == ["DataError", "StorageError", "ZeroDivisionError"]


def test_the_command_to_repeat_gives_the_run_config_again(runs):
    page = Page((runs[0] / "report.html").read_text(encoding="utf-8"))
    line = re.search(r"fedgraph run .*", page.words)
    words = shlex.split(line[0])
    assert len(words) < 40  # what was chosen alone
    chosen = dict(map(parse_assignment, words[3:-1]))
    again = resolve({**defaults(), "method": words[2], **chosen}).to_config()
    before = json.loads((runs[0] / "config.json").read_text())
    places = {"results-dir", "state-dir", "cache-dir"}
    assert {k for k in before if before[k] != again[k]} <= places


def test_the_command_prints_the_page_and_refuses_what_is_no_run(runs, tmp_path, capsys):
    out = tmp_path / "both.html"
    assert fedgraph(["report", *map(str, runs), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert fedgraph(["report", str(tmp_path)]) == 2
    assert "is no results folder and holds none" in capsys.readouterr().err
