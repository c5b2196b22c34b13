import json
import re
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedgraph_flwr.node_config import KEYS
from fedgraph_flwr.registry import METHODS
from fedgraph_flwr.resolve import defaults, resolve, tables

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "datasets/*.md", "simulations/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(page):
    """Names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def fields():
    return [item for table in tables() for item in table.config_fields().items()]


@pytest.mark.parametrize(("key", "field"), fields(), ids=[k for k, _ in fields()])
def test_every_key_is_documented(key, field):
    rule = field.metadata["rule"].describe()
    row = f"| `{key}` | `{json.dumps(field.default)}` | {rule} | "
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    assert [line for line in lines if line.startswith(row)], f"expected: {row}..."


def test_no_other_key_is_documented():
    table = (ROOT / "docs" / "configuration.md").read_text().split("\n## ")[0]
    documented = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert documented == [key for key, _ in fields()]


def test_exactly_the_keys_of_a_site_are_documented():
    page = (ROOT / "docs" / "configuration.md").read_text()
    table = page.split("## Keys of a SuperNode")[1].split("\n## ")[0]
    first = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    assert {key for cell in first for key in re.findall("`([^`]+)`", cell)} == set(KEYS)


@pytest.mark.parametrize("method", METHODS)
def test_readme_names_every_method(method):
    assert f"| `{method}` |" in README


def run_configs():
    """Every run config that a page tells to type."""
    line = re.compile(r"^    flwr run .*--run-config '([^']+)'", re.MULTILINE)
    return [text for page in PAGES for text in line.findall(page.read_text())]


@pytest.mark.parametrize("text", run_configs())
def test_documented_run_configs_are_accepted(text):
    config = {**defaults(), **parse_config_args([text])}
    assert resolve(config).settings.method == config["method"]


def test_run_configs_are_found():
    assert len(run_configs()) > 5


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
