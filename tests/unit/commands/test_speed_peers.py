"""``speed peers``: what a peer's process tells is read, and unlike work is refused."""

from __future__ import annotations

import shutil
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

from fedgraph_flwr.errors import ConfigError, RunFailedError
from simulations.speed import peers
from simulations.speed.__main__ import main
from simulations.speed.peer_run import (
    VERSION,
    Run,
    authors_config,
    peer_config,
    run_peer,
)
from simulations.speed.peers import WORK, check_same_graphs

# What the driver calls, by the names of the peer. Two clients, three rounds.
PEER = """
import sys, time, types
import torch_sparse

class Monitor:
    def add_train_comm_cost(self, upload_mb, download_mb):
        pass

class Loader:
    def __init__(self, count):
        self.dataset = [None] * count

def data_loader(arguments):
    splits = {"train": Loader(8), "val": Loader(1), "test": Loader(arguments.tested)}
    return {f"{i}-TOY": (splits, 3, 2, 8) for i in range(arguments.num_trainers)}

def run_GC(arguments, data):
    monitor = federated_methods.Monitor()
    for _ in range(arguments.num_rounds):
        time.sleep(0.05)
        monitor.add_train_comm_cost(upload_mb=0, download_mb=1)
        monitor.add_train_comm_cost(upload_mb=1, download_mb=0)
    print("          test_acc")
    for name in data:
        print(f"{name}    0.{5 + int(name[0])}")

federated_methods = types.SimpleNamespace(Monitor=Monitor, run_GC=run_GC)
data_process = types.SimpleNamespace(data_loader=data_loader)
__version__ = "VERSION"
""".replace("VERSION", VERSION)


# The modules of the authors' code that the driver calls, by their names.
AUTHORS = {
    "setupGC": """
        import types
        from server import Server

        class Loader:
            def __init__(self, count):
                self.dataset = [None] * count

        def _data(names):
            splits = {"train": Loader(8), "val": Loader(1), "test": Loader(4)}
            return {name: (splits, 3, 2, 8) for name in names}, None

        def prepareData_oneDS(datapath, data, num_client, batchSize, seed):
            assert (batchSize, seed) == (128, 123)
            return _data([f"{i}-{data}" for i in range(num_client)])

        def prepareData_multiDS(datapath, group, batchSize, seed):
            return _data(["MUTAG", "BZR", "COX2"])

        def setup_devices(data, args):
            assert (args.hidden, args.nlayer, args.dropout) == (64, 3, 0.5)
            assert (args.lr, args.weight_decay, args.device) == (0.001, 0.0005, "cpu")
            return list(data), Server(), None
        """,
    "server": """
        class Server:
            def aggregate_weights(self, clients):
                self.averaged = clients
        """,
    "training": """
        import time

        class Scores(dict):
            def mean(self):
                return sum(self.values()) / len(self)

        def run_fedavg(clients, server, rounds, epochs):
            for _ in range(rounds):
                time.sleep(0.05)
                server.aggregate_weights(clients)
            assert server.averaged == clients
            scores = Scores({c: 0.5 + 0.1 * i for i, c in enumerate(clients)})
            return {"test_acc": scores}
        """,
}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder that looks like the authors' code."""
    folder = tmp_path / "GCFL"
    folder.mkdir()
    for name, text in AUTHORS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A Python whose environment has a package that looks like the peer's."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "fedgraph.py").write_text(PEER)
    (place / "attridict.py").write_text(
        textwrap.dedent("""
        class AttriDict(dict):
            __getattr__ = dict.__getitem__
        """)
    )
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{place}" exec {sys.executable} -S "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def settings(clients: int, rounds: int) -> dict[str, object]:
    work = {**WORK, "num-clients": clients, "num-server-rounds": rounds}
    return peer_config({**work, "dataset": "TOY"}, 2, Path("raw"))


def test_a_peers_rounds_scores_and_graphs_are_read(python: str) -> None:
    run = run_peer(python, {**settings(2, 3), "tested": 4})
    assert len(run.rounds) == 2  # the first is not counted: actors may start in it
    assert 0.05 <= run.round < 1
    assert run.wall > 0.15
    assert run.accuracy == pytest.approx(0.55)
    assert run.graphs == [(13, 4), (13, 4)]


def test_packages_that_are_missing_are_named_with_the_cure(
    python: str, tmp_path: Path
) -> None:
    (tmp_path / "site" / "attridict.py").unlink()
    with pytest.raises(ConfigError, match=r"'attridict'.*--no-deps fedgraph==0\.2\.5"):
        run_peer(python, settings(2, 3))
    with pytest.raises(ConfigError, match="--peer-python does not start"):
        run_peer(str(tmp_path / "nothing"), settings(2, 3))


def test_a_peer_that_fails_is_told_in_its_own_words(python: str) -> None:
    with pytest.raises(RunFailedError, match=r"(?s)no result.*KeyError: 'tested'"):
        run_peer(python, settings(2, 3))


@pytest.mark.parametrize(("partition", "clients"), [("chunks", 2), ("datasets", 3)])
def test_the_authors_code_is_run_from_its_folder(
    code: Path, partition: str, clients: int
) -> None:
    work = {**WORK, "dataset": "TOY", "partition": partition, "num-clients": clients}
    given = authors_config({**work, "num-server-rounds": 3}, code, Path("raw"))
    run = run_peer(sys.executable, given)
    assert len(run.rounds) == 2
    assert 0.05 <= run.round < 1
    assert run.accuracy == pytest.approx(0.45 + 0.05 * clients)
    assert run.graphs == [(13, 4)] * clients


def test_a_folder_without_the_authors_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "place_raw", lambda *_: None)
    given = ["peers", "--peer-python", sys.executable, "--gcfl-code", str(tmp_path)]
    assert main(given) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path} has no setupGC.py" in told
    assert "git clone https://github.com/Oxfordblue7/GCFL" in told


def test_groups_and_names_that_no_peer_takes_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, match in (("molecules", "--gcfl-code alone"), ("NO", "unknown dataset")):
        given = ["peers", "--peer-python", sys.executable, "--dataset", name]
        assert main(given) == 2
        assert match in capsys.readouterr().err


@pytest.mark.parametrize(("clients", "share"), [(1, 1.0), (3, 0.6666), (7, 0.2857)])
def test_all_actors_of_the_peer_can_start(clients: int, share: float) -> None:
    given = settings(clients, 3)["num_cpus_per_trainer"]
    assert given == pytest.approx(share)
    assert given * clients <= 2


def test_runs_of_other_graphs_are_not_compared() -> None:
    one = Run([0.1], 1.0, 0.5, [(10, 2), (11, 2)])
    check_same_graphs([one, one])
    with pytest.raises(RunFailedError, match=r"other \(graphs, test graphs\)"):
        check_same_graphs([one, Run([0.1], 1.0, 0.5, [(10, 2), (12, 2)])])


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_peer_finds_the_raw_files_that_we_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    raw, target = tmp_path / "tudataset" / "TINY" / "raw", tmp_path / "peer" / "raw"
    raw.mkdir(parents=True)
    texts = {"A": "1, 2\n2, 1\n", "graph_indicator": "1\n1\n", "graph_labels": "1\n"}
    for kind, text in texts.items():
        (raw / f"TINY_{kind}.txt").write_text(text)
    if is_packed:
        packed = tmp_path / "tudataset_packed" / "TINY.tar.xz"
        packed.parent.mkdir()
        with tarfile.open(packed, "w:xz") as archive:
            archive.add(raw.parent, "TINY")
        shutil.rmtree(raw.parent)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    peers.place_raw("TINY", target)
    found = {path.name: path.read_text() for path in target.iterdir()}
    assert found == {f"TINY_{kind}.txt": text for kind, text in texts.items()}


def test_peers_command_prints_each_kind_of_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(seconds: float) -> Run:
        return Run([seconds, seconds], 10.0, 0.75, [(10, 2)])

    monkeypatch.setattr(peers.console, "width", 200)
    monkeypatch.setattr(peers, "place_raw", lambda *_: None)
    monkeypatch.setattr(peers, "run_peer", lambda *_: fake(2.0))
    monkeypatch.setattr(peers, "run_ours", lambda _, nodes: fake(0.5 + nodes))
    assert main(["peers", "--peer-python", "python", "--repeats", "2"]) == 0
    told = capsys.readouterr().out
    assert f"fedgraph {VERSION}" in told
    assert "0.500 to 0.500" in told
    assert "0.750" in told
