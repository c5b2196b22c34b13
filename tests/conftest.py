"""Fixtures that several test modules share."""

from __future__ import annotations

import gc
import logging
import os
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import toys
from flwr.supercore.task_identity import TaskIdentity

import datasets
from fedgraph_flwr import server_app
from fedgraph_flwr.core import embedding_scores, plugins
from fedgraph_flwr.node import serve
from fedgraph_flwr.results import provenance
from simulations.tiny_runs import Lab

OWN_PACKAGES = {"clients", "datasets", "fedgraph_flwr", "simulations", "strategies"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of real data as slow: ``make test`` is the same with and without."""
    for item in items:
        if {"data_dir", "real_cache"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Keep Python's collector from walking imports again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture
def data_dir():
    """Folder of real data sets; the test is skipped where there is none."""
    folder = os.environ.get("FEDGRAPH_DATA", "")
    if not folder or not Path(folder).is_dir():
        pytest.skip("real data: set FEDGRAPH_DATA to a folder of TU data sets")
    return folder


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory):
    """Cache folder of real data, one for all tests of this run, in all processes."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    return str(folder / "real-cache")


@pytest.fixture(scope="session", autouse=True)
def fleeting_files(tmp_path_factory):
    """Wait for no disk, and leave nothing in the home of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state-home")))
        patch.setattr(os, "fsync", lambda _: None)
        yield


def _contents() -> dict[tuple[str, str], object]:
    """What the application's modules name: functions, classes and constants."""
    return {
        (name, key): value
        for name, module in list(sys.modules.items())
        if name.split(".")[0] in OWN_PACKAGES
        for key, value in list(vars(module).items())
        if key.strip("_").isupper() or (callable(value) and not key.startswith("__"))
    }


@pytest.fixture(scope="module", autouse=True)
def own_modules_untouched():
    """Fail a test file that leaves a module other than it found it."""
    before = _contents()
    yield
    after = _contents()
    left = [f"{a}.{b}" for (a, b), v in before.items() if after.get((a, b), v) is not v]
    assert not left, f"changed for every later test: {', '.join(left)}"


@pytest.fixture
def global_rng_untouched():
    """Fail unless torch's global generator is where it was before the test."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture
def doubles():
    """Run the client's own code in double precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def task_identity():
    """Let ``flwr.app.Message`` be built outside of Flower's processes."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


@pytest.fixture(scope="module")
def toy_data():
    """Every client gets toy graphs; no figures, no report, no git, few log lines."""
    logger = logging.getLogger("flwr")
    level = logger.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load_partition", toys.federation)
        patch.setattr(server_app, "draw_all", lambda _: None)
        patch.setattr(server_app, "write_own_report", lambda _: None)
        patch.setattr(provenance, "git_commit", lambda: "unknown")
        # The protocol's 10 take longer.
        patch.setattr(embedding_scores, "_NUM_STARTS", 1)
        serve.clear_kept()
        logger.setLevel(logging.ERROR)
        yield patch
        logger.setLevel(level)
    serve.clear_kept()


@pytest.fixture(scope="session")
def finished_runs():
    """Runs that ``once`` has made, by method, source of the data and settings."""
    return {}


@pytest.fixture(scope="module")
def lab(toy_data, tmp_path_factory, finished_runs):
    """Runs the toy federation in this process."""
    return Lab(tmp_path_factory.mktemp("runs"), finished=finished_runs)


@pytest.fixture(scope="module")
def run(lab):
    """Run the toy federation: ``run(method, nodes=1, **overrides)``."""
    return lab.run


@pytest.fixture(scope="module")
def once(lab):
    """Run as ``run`` does, but not twice; for tests that patch and resume nothing."""
    return lab.once


@pytest.fixture
def write_plugin(tmp_path, monkeypatch):
    """Write a module of the bundle's ``plugins``, in a bundle of the test's own."""
    monkeypatch.setattr(plugins, "_ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()

    def write(name: str, source: str = toys.PLUGIN) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in [path.parent, *path.parent.parents]:
            if folder == tmp_path:
                break
            (folder / "__init__.py").touch()
        path.write_text(textwrap.dedent(source))

    yield write
    plugins.forget()
