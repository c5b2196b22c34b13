import re
import textwrap
from pathlib import Path

import pytest
import settings
from flwr.common.config import parse_config_args

from fedgraph_flwr.node.node_config import KEYS
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import defaults, resolve, tables

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
# Of the papers.
RESULTS = sorted({*DOCS.glob("results-*.md")} - {DOCS / "results-folder.md"})
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "datasets/*.md", "simulations/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
INTERVAL = re.compile(r"[+-]\d+\.\d+ \[[+-]\d+\.\d+, [+-]\d+\.\d+\]")


def anchors(page):
    """Names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_the_keys_on_their_page_are_those_of_the_code():
    page = (DOCS / "configuration.md").read_text()
    assert settings.new_page(page) == page


@pytest.mark.parametrize("table", tables(), ids=lambda t: t.__name__)
def test_a_key_is_explained_in_at_most_twenty_words(table):
    found = settings.meanings(table)
    assert set(found) == {f.name for f in table.config_fields().values()}
    assert [name for name, what in found.items() if len(what.split()) > 20] == []


def test_exactly_the_keys_of_a_site_are_documented():
    page = (ROOT / "docs" / "configuration.md").read_text()
    table = page.split("## Keys of a SuperNode")[1].split("\n## ")[0]
    first = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert {key for cell in first for key in re.findall("`([^`]+)`", cell)} == set(KEYS)


def test_the_methods_of_each_task_are_documented():
    page = (DOCS / "methods.md").read_text()
    assert settings.new_methods(page) == page


def test_every_method_is_documented():
    page = (DOCS / "methods.md").read_text()
    assert [m for m in METHODS if f"| `{m}` |" not in page] == []


def test_the_example_of_step_is_shown_as_it_is():
    code = (ROOT / "examples" / "trimmed.py").read_text().partition('"""\n\n')[2]
    shown = textwrap.indent(code, "    ")
    assert shown in (DOCS / "your-method.md").read_text()


def test_every_page_is_linked_from_the_index():
    index = DOCS / "README.md"
    linked = {(DOCS / link).resolve() for link in LINK.findall(index.read_text())}
    pages = {*DOCS.glob("*.md"), *DOCS.glob("runs/*.md")} - {index}
    assert not {page.name for page in pages - linked}


def test_readme_is_short_and_starts_with_a_command():
    before, command, _ = README.partition("\n    make run")
    assert command
    assert len(before.split()) <= 60
    assert len(README.split()) <= 900


@pytest.mark.parametrize("page", RESULTS, ids=lambda p: p.name)
def test_a_page_of_results_is_short(page):
    words = [w for w in page.read_text().split() if w.strip("|-:")]  # without bars
    assert len(words) <= 900


def prose(text):
    """Lines that an editor can wrap: no tables, commands and pictures."""
    return [x for x in text.splitlines() if not x.startswith(("|", "    ", "![", "<"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_lines_of_prose_are_at_most_120_characters(page):
    assert [line for line in prose(page.read_text()) if len(line) > 120] == []


def intervals(page):
    return set(INTERVAL.findall(" ".join(page.read_text().split())))


@pytest.mark.parametrize("page", [*RESULTS, DOCS / "findings.md"], ids=lambda p: p.name)
def test_every_interval_stands_in_a_table_of_runs(page):
    tables = set().union(*map(intervals, DOCS.glob("runs/*.md")))
    assert intervals(page) <= tables


def test_rows_of_findings_have_two_intervals_around_their_means_from_two_splits_on():
    text = (DOCS / "findings.md").read_text()
    rows = re.findall(r"^\| .* \| (\d+) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) == len(re.findall(r"[\]\d] \|\n", text)) > 10
    for splits, *cells in rows:
        for cell in cells:
            mean, *ends = map(float, re.findall(r"[+-]\d+\.\d+", cell))
            assert len(ends) == (2 if int(splits) > 1 else 0)
            assert not ends or ends[0] <= mean <= ends[1]


def run_configs():
    """Every run config that a page tells to type."""
    line = re.compile(r"^    flwr run .*--run-config '([^']+)'", re.MULTILINE)
    return [text for page in PAGES for text in line.findall(page.read_text())]


def test_documented_run_configs_are_accepted():
    assert len(run_configs()) > 5
    for text in run_configs():
        config = {**defaults(), **parse_config_args([text])}
        assert resolve(config).settings.method == config["method"]


def test_make_targets_exist():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page in PAGES:
        text = page.read_text()
        named = set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE))
        assert named <= set(targets), page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page):
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link
