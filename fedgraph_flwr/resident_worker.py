"""The process that stays at a site: ``python -m fedgraph_flwr.resident_worker``.

:mod:`fedgraph_flwr.node.resident` starts it. It answers one message after another. It
ends when nothing was asked for ten minutes, or when another worker has taken its place;
and at once, whatever it is doing, when its SuperNode is gone.
"""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from logging import INFO, WARNING
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener
from multiprocessing.reduction import register
from pathlib import Path
from tempfile import mkdtemp

from flwr.app import Context, Message

from .client_app import app
from .core.errors import FedGraphError, RunFailedError, StorageError
from .core.logs import log
from .core.process import log_failure
from .node.resident import SOCKETS, Record, identity, lives, read_record

IDLE_S = 600.0  # without a message, after which it ends
register(memoryview, lambda view: (bytes, (view.tobytes(),)))  # arrays of replies
_LOOK_S = 1.0


def serve(place: Path, key: str, parent: str) -> str:
    """Answer messages until there is a reason to end; return it.

    Parameters
    ----------
    place : path
        File in which those who ask look for this process.
    key : str
        Of :func:`fedgraph_flwr.node.resident.key_of`.
    parent : str
        Process that starts the site's ClientApps, as ``identity`` tells it.
    """
    secret = secrets.token_bytes(32)
    listener = _listen(secret)
    waiting: queue.Queue[Connection] = queue.Queue()
    closed = threading.Event()
    own = Record(
        key=key,
        address=str(listener.address),
        secret=secret.hex(),
        process=identity(os.getpid()),
    )
    threading.Thread(target=_watch, args=(parent, own, place), daemon=True).start()
    with ExitStack() as stack, listener:
        stack.callback(own.clear)
        stack.callback(closed.set)
        threading.Thread(
            target=_accept, args=(listener, waiting, closed), daemon=True
        ).start()
        own.write(place)
        last = time.monotonic()
        while True:
            try:
                with waiting.get(timeout=_LOOK_S) as connection:
                    _answer(connection)
                last = time.monotonic()
            except queue.Empty:
                pass
            if read_record(place) != own:
                return "another one has taken its place"
            if time.monotonic() > last + IDLE_S:
                place.unlink(missing_ok=True)
                return f"nothing was asked for {IDLE_S:.0f} s"


def _listen(secret: bytes) -> Listener:
    """Listen at a socket in a new folder, which only this user can enter."""
    folder = ""
    try:
        folder = mkdtemp(prefix=SOCKETS)
        address = str(Path(folder) / "socket")
        return Listener(address, family="AF_UNIX", authkey=secret)
    except OSError as error:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise StorageError(
            f"cannot make a socket in {folder or 'the folder for temporary files'}:"
            f" {error}; start the SuperNode with TMPDIR set to a folder that it can"
            " write to, whose path is short, such as /tmp"
        ) from error


def _watch(parent: str, own: Record, place: Path) -> None:
    """End with the SuperNode, as its ClientApps do."""
    while lives(parent):
        time.sleep(_LOOK_S)
    own.clear()
    place.unlink(missing_ok=True)
    os._exit(1)


def _accept(
    listener: Listener, waiting: queue.Queue[Connection], closed: threading.Event
) -> None:
    while True:
        try:
            waiting.put(listener.accept())
        except (AuthenticationError, EOFError, ConnectionError):  # a stranger, or gone
            continue
        except Exception as error:  # whoever asks next must not wait for nobody
            if closed.wait(_LOOK_S):
                return
            log(WARNING, "the resident worker could not be reached once: %r", error)


def _answer(connection: Connection) -> None:
    """Answer one message; whoever asked may be gone, or ask something strange."""
    try:
        connection.send(True)
        connection.send(_reply(*connection.recv()))
    except Exception as error:
        log(WARNING, "the resident worker gave a message up: %r", error)


def _reply(message: Message, context: Context) -> Message | str:
    try:
        return app(message, context)
    except RunFailedError as error:  # its text is what others may know
        return str(error)
    except Exception as error:
        log_failure("this site's resident worker cannot answer", error)
        return "this site cannot answer; its log says why"


if __name__ == "__main__":
    given, *texts = sys.argv[1:]
    try:
        log(INFO, "this site's resident worker ends: %s", serve(Path(given), *texts))
    except FedGraphError as failure:
        log_failure("this site's resident worker ends", failure)
        sys.exit(1)
