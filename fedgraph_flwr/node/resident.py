"""A worker: one process answers all messages of a run at a site.

Flower starts a process for each message, which would import PyTorch and load the data
again. At a site that process hands its message to another one that stays
(:mod:`fedgraph_flwr.resident_worker`), through a socket that only this user can open.
A run has one worker at a SuperNode. It belongs to one version of the code and one state
of the data: if one of them changes, the next message ends it and starts another.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from logging import INFO
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from ..core.audit_log import CODE
from ..core.errors import RunFailedError
from ..core.files import locked, make_folder, project_root, remove, replacing
from ..core.logs import log
from ..core.process import log_failure

RESIDENT = "resident"  # key of node-config; false: no worker
_LOCK = ".resident.lock"  # no experiment has a name that begins so
SOCKETS = "fedgraph-resident-"  # begin of the names of sockets' folders
_WORKER = "fedgraph_flwr.resident_worker"
_TRIES, _START_S, _END_S, _POLL_S = 3, 120.0, 10.0, 0.05
_MOST_FILES = 10_000  # of a data folder; what lies behind them is not looked at
_started: list[subprocess.Popen[bytes]] = []  # nobody waits for them


@dataclass(frozen=True, kw_only=True)
class Record:
    """A worker: what it serves, and how to reach it.

    Parameters
    ----------
    key : str
        See :func:`key_of`.
    address : str
        Its socket, in a folder that only this user can enter.
    secret : str
        What both ends must know, hexadecimal.
    process : str
        Its :func:`identity`.
    """

    key: str
    address: str
    secret: str
    process: str

    def clear(self) -> None:
        """Delete the folder of the socket, which outlives a worker that was killed."""
        folder = Path(self.address).parent
        if folder.name.startswith(SOCKETS):
            shutil.rmtree(folder, ignore_errors=True)

    def write(self, place: Path) -> None:
        """Leave it in a file, for this user's eyes."""
        with replacing(place) as partial:
            partial.touch(mode=0o600)
            partial.write_text(json.dumps(asdict(self)))


def read_record(place: Path) -> Record | None:
    """Return the record in a file, None if there is none that can be read."""
    try:
        return Record(**json.loads(place.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def identity(pid: int) -> str:
    """Process id and when it started; "" if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else f"{pid} {fields[19]}"


def lives(process: str) -> bool:
    """Whether the process of an :func:`identity` is still there."""
    return bool(process) and identity(int(process.split()[0])) == process


def is_resident(node: Mapping[str, Any]) -> bool:
    """Whether a worker answers: on Linux, at a site whose operator refuses none."""
    return node.get(RESIDENT, "clients" in node) is True and bool(identity(os.getpid()))


def record_file(node: Mapping[str, Any], run: int) -> Path:
    """File of the record of a run's worker, in the site's state folder.

    SuperNodes of one machine may share that folder, and serve several runs at a time.
    """
    root = str(node.get("state-dir", ""))
    if not root:
        from clients.store import default_state_dir  # here: it imports a lot

        root = str(default_state_dir())
    words = sorted((name, repr(value)) for name, value in node.items())
    return Path(root) / f"resident-{_digest([words, run])[:16]}.json"


def key_of(context: Context, parent: str) -> str:
    """Hash of all that a worker depends on: another key means another worker."""
    node, root = context.node_config, project_root()
    parts = [
        str(root),
        [_signature(root / name, ".py") for name in CODE],
        _signature(Path(str(node.get("data-path", "")))),
        parent,
    ]
    return _digest(parts)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _signature(path: Path, ending: str = "") -> list[tuple[str, int, int, int]]:
    """Names, sizes and times of the files of a folder, or of one file.

    Links are followed, as whoever reads the data does. With an ending, other files do
    not count, such as the byte code that Python leaves beside modules.
    """
    if not path.name:
        return []
    walk = os.walk(path, followlinks=True)
    within = (Path(place, name) for place, _, names in walk for name in names)
    named = (f for f in chain([path], within) if f.name.endswith(ending))
    found = []
    for file in islice(named, _MOST_FILES):
        with suppress(OSError):
            about = file.stat()
            times = about.st_mtime_ns, about.st_ctime_ns  # tools set the first back
            found.append((str(file), about.st_size, *times))
    return sorted(found)


def hand_over(message: Message, context: Context) -> Message:
    """Let the worker answer a message, and start it if there is none.

    Raises
    ------
    RunFailedError
        What the app itself raises; or the worker does not start, or has ended while it
        answered. Flower sends the server its text, which names no path of the site.
    """
    try:
        connection = _worker(context)
    except RunFailedError:
        raise
    except Exception as error:
        log_failure("this site's resident worker cannot be used", error)
        raise RunFailedError(
            "this site's resident worker cannot be used; its log says why"
        ) from None
    with connection:
        try:
            connection.send((message, context))
            reply = connection.recv()
        except (EOFError, OSError):
            raise RunFailedError(
                "this site's resident worker ended while it answered; its log may say"
                " why. The next message starts another one"
            ) from None
    if isinstance(reply, Message):
        return reply
    raise RunFailedError(str(reply))


def _worker(context: Context) -> Connection:
    """Connect to the worker of a run; it is about to wait for a message."""
    place = record_file(context.node_config, context.run_id)
    parent = identity(os.getppid())
    key = key_of(context, parent)
    make_folder(place.parent, is_private=True)
    for _ in range(_TRIES):
        with locked(place.parent / _LOCK):
            record = read_record(place)
            if record is None or record.key != key or not lives(record.process):
                if record is not None:
                    end(record)
                record = _start(place, key, parent)
        if (connection := _connect(record)) is not None:
            return connection
    raise RunFailedError("this site's resident worker cannot be reached; see its log")


def _connect(record: Record) -> Connection | None:
    """Connect, and wait until the worker has nothing else to do."""
    try:
        connection = Client(record.address, authkey=bytes.fromhex(record.secret))
    except (OSError, EOFError, AuthenticationError):
        end(record)
        return None
    try:
        connection.recv()
    except (EOFError, OSError):  # it has ended, and has begun nothing
        connection.close()
        return None
    return connection


def _start(place: Path, key: str, parent: str) -> Record:
    remove(place)
    path = os.pathsep.join(filter(None, sys.path))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _WORKER, str(place), key, parent],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
    )
    _started.append(process)
    log(INFO, "starting this site's resident worker, process %d", process.pid)

    def listens() -> bool:
        record = read_record(place)
        return record is not None and record.key == key

    what = "ended as it started"
    if not _await(lambda: listens() or process.poll() is not None, _START_S):
        what = f"has not started within {_START_S:.0f} s"
        process.kill()
    if (record := read_record(place)) is None or record.key != key:
        raise RunFailedError(
            f"this site's resident worker {what}; its log says why. Start the SuperNode"
            f" with --node-config '{RESIDENT}=false' to do without it"
        )
    return record


def end(record: Record) -> None:
    """End a worker, and wait until it is gone: what it keeps is whole at any moment."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if not lives(record.process):
            break
        with suppress(ProcessLookupError):
            os.kill(int(record.process.split()[0]), sign)
        _await(lambda: not lives(record.process), _END_S)
    record.clear()


def _await(is_so: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return found
