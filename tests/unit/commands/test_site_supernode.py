"""``site/supernode.py``: options, waits, and what its forks start with."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest

from fedgraph_flwr.site import supernode
from strategies import sending


@pytest.fixture
def pipe():
    """Both ends of a pipe, which are closed with the test."""
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def spec(**changed: object) -> SimpleNamespace:
    """Flower's description of a ClientApp that is to be started."""
    given = {
        "task_type": "flwr-clientapp",
        "runtime_api_address": "127.0.0.1:9094",
        "token": "secret",
        "insecure": True,
        "root_certificates_path": None,
        "runtime_dependency_install": False,
    }
    return SimpleNamespace(**{**given, **changed})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ["127.0.0.1:9094", "--insecure"]),
        (["--port", "9100", "--insecure"], ["127.0.0.1:9100", "--insecure"]),
        (["--host", "::1"], ["[::1]:9094", "--insecure"]),
        (["--host", "0.0.0.0"], ["127.0.0.1:9094", "--insecure"]),
        (
            ["--ssl-certfile", "c", "--ssl-keyfile", "k", "--ssl-ca-certfile", "ca"],
            ["127.0.0.1:9094", "--root-certificates", "ca"],
        ),
        (
            ["--superexec-auth-secret-file", "s"],
            ["127.0.0.1:9094", "--insecure", "--superexec-auth-secret-file", "s"],
        ),
        (
            ["--allow-runtime-dependency-installation"],
            ["127.0.0.1:9094", "--insecure", "--allow-runtime-dependency-installation"],
        ),
    ],
)
def test_the_superexec_is_given_what_fits_the_supernode(
    given: list[str], expected: list[str]
) -> None:
    flower = import_module("flwr.supernode.cli.flower_supernode")
    options = flower._parse_args_run_supernode().parse_args(given)

    found = supernode._superexec_options(options)

    own = ["--parent-pid", str(os.getpid())]
    assert found == ["--runtime-api-address", *expected, *own]
    parser = import_module("flwr.supercore.cli.flower_superexec")._parse_args()
    parser.parse_args(found)  # Flower takes them all


def test_who_starts_clientapps_himself_is_refused() -> None:
    with pytest.raises(SystemExit, match="leave it out, or use flower-supernode"):
        supernode.main(["--insecure", "--isolation", "process"])


def test_a_message_reaches_the_process_that_forks(pipe: tuple[int, int]) -> None:
    read, write = pipe

    result = supernode.Forks(write, os.getpid()).launch(spec())

    assert result.status == "accepted"
    arguments = json.loads(os.read(read, 4096))
    assert arguments[0] == "flwr-clientapp"
    parser = import_module("flwr.supernode.cli.flwr_clientapp")
    options = parser._parse_args_run_flwr_clientapp().parse_args(arguments[1:])
    assert options.runtime_api_address == "127.0.0.1:9094"
    assert options.token == "secret"
    assert options.insecure
    assert options.parent_pid == os.getppid()  # ends with the process that forks
    assert not options.runtime_dependency_install


def test_a_message_over_tls_names_the_authority(pipe: tuple[int, int]) -> None:
    read, write = pipe
    secured = spec(
        insecure=False, root_certificates_path="ca", runtime_dependency_install=True
    )

    supernode.Forks(write, os.getpid()).launch(secured)

    arguments = json.loads(os.read(read, 4096))
    assert arguments[-3:] == [
        *("--root-certificates", "ca"),
        "--allow-runtime-dependency-installation",
    ]
    assert "--insecure" not in arguments


def test_what_is_no_clientapp_is_not_started(pipe: tuple[int, int]) -> None:
    _, write = pipe

    result = supernode.Forks(write, os.getpid()).launch(spec(task_type="flwr-model"))

    assert result.status == "failed"
    assert "flwr-model" in result.message


def test_the_supernode_ends_with_the_process_that_forks(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = supernode.Forks(pipe[1], 4711)
    ended: list[int] = []
    monkeypatch.setattr(supernode, "end", ended.append)
    forks.reconcile()
    assert not ended

    monkeypatch.setattr(os, "getppid", lambda: 1)

    with pytest.raises(SystemExit, match="is gone"):
        forks.reconcile()
    assert ended == [4711]


def test_waits_grow_and_begin_anew_for_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    fake = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(supernode, "time", fake)
    waits = supernode.Waits()
    for _ in range(60):
        waits.sleep(3)
    waits.sleep(0.5)
    waits.sleep(3)

    idle = slept[:60]
    assert idle[0] == slept[61] == 0.5
    assert idle == sorted(idle)
    assert idle[-1] == 3  # as Flower's
    assert slept[60] == pytest.approx(0.5 / 6)
    # No wait is longer than a tenth of the time before it, but for the first ones.
    begins = [sum(idle[:i]) for i in range(60)]
    assert all(s <= max(0.5, 0.1 * b) + 1e-9 for s, b in zip(idle, begins, strict=True))


def test_no_module_of_ours_is_there_before_the_bundle() -> None:
    packages = ["fedgraph_flwr", "clients", "strategies", "datasets", "simulations"]
    code = (
        "import runpy, sys, threading\n"
        f"own = runpy.run_path({supernode.__file__!r})\n"
        "for name in own['_PRELOAD']: __import__(name)\n"
        f"found = [m for m in sys.modules if m.split('.')[0] in {packages}]\n"
        "assert not found, found\n"
        "assert threading.active_count() == 1\n"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_flower_looks_again_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = import_module("flwr.superlink.grid.http_grid")
    monkeypatch.setattr(grid, "pull_objects", grid.pull_objects)

    sending.look_again_sooner()

    found = inspect.signature(grid.pull_objects).parameters
    assert (found["initial_backoff"].default, found["backoff_cap"].default) == (0.05, 1)


def test_flowers_clientapp_takes_the_wait_of_forks() -> None:
    app = import_module("flwr.supernode.runtime.run_clientapp")

    found = inspect.signature(app.pull_and_inflate_object_from_tree).parameters

    assert "initial_backoff" in found
