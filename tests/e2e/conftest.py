"""Fixtures of the tests that start processes."""

from __future__ import annotations

import socket

import pytest


def _all_free(ports: range) -> bool:
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


@pytest.fixture(scope="session")
def own_ports() -> tuple[int, int]:
    """Two ports on loopback, the second followed by four more free ones."""
    base = next(b for b in range(41000, 60000, 10) if _all_free(range(b, b + 10)))
    return base, base + 1
