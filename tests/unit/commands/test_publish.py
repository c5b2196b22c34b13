"""Links of pages that move into the published set."""

from __future__ import annotations

import pytest
from publish import publish, relink

from fedgraph_flwr.core.errors import StorageError

PUBLISHED = ("README.md", "docs/privacy.md", "docs/runs/a.md", "datasets/README.md")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](privacy.md#x)", "[a](docs/privacy.md#x)"),
        ("[a](../datasets/README.md)", "[a](datasets/README.md)"),
        ("[a](runs/)", "[a](docs/runs)"),
        ("[a](hub.md)", "[a](README.md)"),
        ("[a](#start)", "[a](#start)"),
        ("[a](https://flower.ai)", "[a](https://flower.ai)"),
        ("[a](../tests/x.md) b", "a b"),
        ("![a](img/a.png)b", "b"),
        ("![a](https://x.org/a.png)", "![a](https://x.org/a.png)"),
        ("[a](privacy.md), [b](gone.md)", "[a](docs/privacy.md), b"),
    ],
)
def test_links_of_the_readme_fit_its_new_place(text, expected):
    assert relink(text, "docs/hub.md", "README.md", PUBLISHED) == expected


def test_a_page_that_stays_keeps_its_links():
    text = "[a](../datasets/README.md) [b](runs/a.md) [c](hub.md)"
    expected = "[a](../datasets/README.md) [b](runs/a.md) [c](../README.md)"
    assert relink(text, "docs/privacy.md", "docs/privacy.md", PUBLISHED) == expected


def test_nothing_is_overwritten(tmp_path):
    with pytest.raises(StorageError, match="exists: delete it"):
        publish(tmp_path, tmp_path)
