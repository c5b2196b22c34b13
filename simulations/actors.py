"""The machines on which Ray starts actors, and how many of these find room."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from fedgraph_flwr.core.errors import ConfigError
from fedgraph_flwr.core.words import shortened

_CONNECT_S, _ANSWER_S = 5.0, 60.0  # of a Ray cluster; its client starts slowly


def machines() -> list[tuple[float, float]]:
    """Cores and GPUs of each machine on which Ray starts actors.

    Raises
    ------
    ConfigError
        ``RAY_ADDRESS`` names a cluster that does not answer.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local"):
        import torch

        return [(os.cpu_count() or 1, torch.cuda.device_count())]
    try:
        found = _ask_ray(address)
    except subprocess.TimeoutExpired:
        why = f"no answer within {_ANSWER_S:.0f} s"
    except subprocess.CalledProcessError as error:
        why = shortened(error.stderr.strip().rpartition("\n")[2])
    except ValueError:
        why = "an address is HOST:PORT"
    except OSError as error:
        why = str(error)
    else:
        return found
    raise ConfigError(
        f"RAY_ADDRESS={address!r} names no Ray cluster that answers ({why}); `ray"
        " status` on its first machine says more. Unset it to use this machine alone"
    )


def _ask_ray(address: str) -> list[tuple[float, float]]:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if host:  # Ray itself takes minutes to give up
        place = host.strip("[]"), int(port)
        socket.create_connection(place, _CONNECT_S).close()
    printed = subprocess.run(
        [sys.executable, "-c", _ASK],
        check=True, capture_output=True, text=True, timeout=_ANSWER_S,
    ).stdout  # fmt: skip
    found = [tuple(each) for each in json.loads(printed.rpartition(_MARK)[2])]
    return [(cpus, gpus) for cpus, gpus in found if cpus or gpus]


_MARK = "machines: "
# In a process that can be ended: Ray goes on trying for minutes.
_ASK = f"""
import json, logging, ray
ray.init(log_to_driver=False, logging_level=logging.ERROR)
held = [node["Resources"] for node in ray.nodes()]  # of one that has left, nothing
told = [(have.get("CPU", 0), have.get("GPU", 0)) for have in held]
print({_MARK!r} + json.dumps(told))
"""


def num_actors(there: Sequence[tuple[float, float]], *, nodes: int, gpus: float) -> int:
    """Count processes that train at the same time, as Flower lets Ray start them.

    An actor has one core; with ``gpus`` > 0 it also has that share of a GPU. Both are
    of one machine.

    Parameters
    ----------
    there : sequence of (float, float)
        Cores and GPUs of each machine.

    Raises
    ------
    ConfigError
        There is no such share of a GPU.
    """
    rooms = [cpus for cpus, _ in there]
    if gpus > 0:
        rooms = [min(cpus, devices / gpus) for cpus, devices in there]
    allowed = min(nodes, sum(map(int, rooms)))
    if not allowed:
        raise ConfigError(
            f"--gpus {gpus:g} leaves room for no actor:"
            f" {name_machines(there)}; give a smaller share, or 0"
        )
    return allowed


def name_machines(there: Sequence[tuple[float, float]]) -> str:
    """Word how many cores and GPUs machines have."""
    cpus, gpus = (f"{sum(column):g}" for column in zip(*there, strict=True))
    where = "this machine has" if len(there) == 1 else f"{len(there)} machines have"
    return f"{where} {cpus} core(s) and {gpus} GPU(s)"
