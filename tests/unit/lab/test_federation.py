"""A federation on loopback: its ports are its own, its processes have its settings."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import federation
import pytest
from federation import free_ports

from simulations import flower

pytestmark = pytest.mark.slow  # processes
LAB = str(Path(federation.__file__).parent)


def test_ports_are_none_that_connections_are_given() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first = free_ports(20)
    assert first > 19999, "Ray's workers use the ports below"
    assert first + 20 <= int(given[0])


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = federation._PORTS.stop  # blocks that no other test is given
    monkeypatch.setattr(federation, "_PORTS", range(beyond, beyond + 40))
    monkeypatch.setattr(federation, "_HELD", type(federation._HELD)())
    other = {beyond: beyond + 20, beyond + 20: beyond}[free_ports(20)]
    with socket.socket() as used:
        used.bind(("127.0.0.1", other + 1))  # bound, and does not listen yet
        with pytest.raises(federation.RunFailedError, match="no 3 free ports"):
            free_ports(3)
    assert free_ports(3) == other


def test_two_processes_are_never_given_the_same_ports() -> None:
    ask = (
        f"import sys; sys.path.append({LAB!r}); from federation import free_ports;"
        "print([free_ports(3) for _ in range(50)]); sys.stdout.flush(); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", ask]
    asked = [subprocess.Popen(command, **pipes) for _ in range(4)]
    found = [process.stdout.readline().strip("[]\n").split(", ") for process in asked]
    for process in asked:
        process.communicate("\n")
    assert len({port for ports in found for port in ports}) == 200


HOOKED = """
from flwr.supercore import heartbeat
from flwr.supercore.corestate import sql_corestate
from flwr.supernode import fleet_http_connection, start_client_internal as supernode
import fedgraph_flwr.client_app, time
from clients.privacy import noisy_views
begin = time.monotonic()
supernode.time.sleep(60)
print(
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL,
    fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL,
    sql_corestate.HEARTBEAT_DEFAULT_INTERVAL,
    time.monotonic() - begin < 10,
    noisy_views.add_noise.__module__.rpartition(".")[2],
)
"""


def test_processes_of_flower_get_the_settings_of_the_lab(tmp_path) -> None:
    own = federation.environment(tmp_path / "flwr", witness=tmp_path / "lines")
    own["PYTHONPATH"] += f":{Path(LAB).parents[1]}"
    command = [sys.executable, "-c", HOOKED]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "15 15 30 True witness", done.stderr
    assert (tmp_path / "flwr").is_dir()


def test_a_process_is_found_by_its_home_and_killed(tmp_path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    own = {**os.environ, "FLWR_HOME": str(tmp_path)}
    with subprocess.Popen(command, env=own) as started:
        while not flower.pids(tmp_path, "time.sleep"):  # it has no command at first
            assert started.poll() is None
        assert flower.pids(tmp_path, "-c import") == [started.pid]
        assert flower.pids(tmp_path / "other") == []
        assert not federation.is_orphan(started.pid)
        assert federation.has_loaded(started.pid, "libc")
        assert not federation.has_loaded(started.pid, "libtorch")
        federation.kill([started.pid])
        assert started.wait(10) == -signal.SIGKILL
    federation.kill([started.pid])  # already gone: nothing to do
    assert federation.is_orphan(started.pid)
