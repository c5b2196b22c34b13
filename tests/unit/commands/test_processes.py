"""Ports of a federation on this machine belong to it alone."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from simulations import processes
from simulations.processes import free_ports

pytestmark = pytest.mark.slow  # whole runs; the contracts are fast


def test_ports_are_none_that_connections_are_given() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first = free_ports(20)
    assert first > 19999, "Ray's workers use the ports below"
    assert first + 20 <= int(given[0])


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = processes._PORTS.stop  # blocks that no other test is given
    monkeypatch.setattr(processes, "_PORTS", range(beyond, beyond + 40))
    monkeypatch.setattr(processes, "_HELD", type(processes._HELD)())
    other = {beyond: beyond + 20, beyond + 20: beyond}[free_ports(20)]
    with socket.socket() as used:
        used.bind(("127.0.0.1", other + 1))  # bound, and does not listen yet
        with pytest.raises(processes.RunFailedError, match="no 3 free ports"):
            free_ports(3)
    assert free_ports(3) == other


def test_two_processes_are_never_given_the_same_ports() -> None:
    ask = (
        "import sys; from simulations.processes import free_ports;"
        "print([free_ports(3) for _ in range(50)]); sys.stdout.flush(); input()"
    )
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", ask],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    blocks: list[str] = []
    for process in asked:
        assert process.stdout is not None
        blocks += process.stdout.readline().strip("[]\n").split(", ")
    for process in asked:
        process.communicate("\n")
    assert len(set(blocks)) == len(blocks) == 200
