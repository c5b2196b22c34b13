"""A SuperNode whose answers start at once: ``python supernode.py OPTIONS``.

Flower starts Python for each message, which imports Flower and PyTorch again. Here one
process has imported both, and a fork of it answers each message. A bundle is unpacked
once. Waits grow with the time waited so far up to Flower's own, which are 3 s for a
message and 0.5 s for a reply; the SuperExec is told of a message and need not ask. The
options are those of ``flower-supernode``, and the answers are the same.

Three processes belong together: Flower's SuperNode, its SuperExec, which fetches
messages from it, and the one that forks. When one of them is gone the others end, so
that systemd starts all anew. This file imports nothing of this project: code of runs
comes with their bundles, and no other version of it may be there before.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

_SERVE = "--serve"  # first argument of the process that forks
_PARENT, _INSTALL = "--parent-pid", "--allow-runtime-dependency-installation"
_CLIENT_APP = "flwr-clientapp"  # Flower's word for an answer, and its command
_SHARE = 0.1  # of the time waited so far is the next wait ...
_LEAST = 1 / 30  # ... and at least this part of Flower's own ...
_LOOKS = 3  # ... and so many times as long as the last look took: who is asked is busy
_REPLY_S = 0.5  # Flower's wait for a reply; a SuperNode finds it in its own memory
# Until the next look for the rest of a message, first and at most; Flower: 1 and 10 s.
_FROM_SUPERLINK_S, _FROM_SUPERNODE_S = (0.1, 10.0), (0.05, 0.2)
# As in Flower's ``parse_config_args``: keys and values; all else it passes over.
_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")
LEAVES_OUT = (
    "which Flower leaves out without a word; write key=value without spaces around =,"
    " pairs separated by spaces, texts in quotes without quotes inside"
)


def main(given: list[str]) -> None:
    """Be Flower's SuperNode, with other waits and another SuperExec."""
    options = argparse.ArgumentParser(add_help=False)  # which reads them as Flower's
    options.add_argument("--node-config", nargs="?")
    node_config = options.parse_known_args(given)[0].node_config
    if left := left_out(node_config or ""):
        sys.exit(f"supernode.py: --node-config has {left!r}, {LEAVES_OUT}")
    internal: Any = import_module("flwr.supernode.start_client_internal")
    internal.time = SimpleNamespace(sleep=Waits().sleep)
    try:
        os.fstat(0)
    except OSError:  # the pipe would take its place
        os.open(os.devnull, os.O_RDONLY)
    heard, told = os.pipe()
    os.set_blocking(told, False)
    internal.subprocess = SimpleNamespace(Popen=partial(start_forks, heard))
    own = OwnReply(internal._pull_and_store_message, internal._push_messages)
    internal._pull_and_store_message = partial(tell, told, own.pull)
    internal._push_messages = own.push
    look_again_sooner(internal, "pull_objects", _FROM_SUPERLINK_S)
    sys.argv = ["flower-supernode", *given]
    import_module("flwr.supernode.cli.flower_supernode").flower_supernode()


def left_out(text: str) -> str:
    """Return what Flower passes over when it reads keys and values, or a file."""
    if text.endswith(".toml"):
        return ""
    return " ".join(_PAIR.sub(" ", text).replace(",", " ").split())


class Waits:
    """Waits that grow with the time that something has been waited for."""

    def __init__(self) -> None:
        self._longest_s, self._begin, self._end = 0.0, 0.0, 0.0

    def sleep(self, longest_s: float) -> None:
        """Wait for what Flower waits for so long at a time."""
        now = time.monotonic()
        if longest_s != self._longest_s:  # for something else than before
            self._longest_s, self._begin, self._end = longest_s, now, now
        share_s = _SHARE * (now - self._begin)
        look_s = 0.0 if longest_s == _REPLY_S else now - self._end
        wait_s = max(_LEAST * longest_s, share_s, _LOOKS * look_s)
        time.sleep(min(longest_s, wait_s))
        self._end = time.monotonic()


def tell(told: int, pull: Callable[..., int | None], **given: Any) -> int | None:
    """Fetch a message for Flower's SuperNode, and tell the SuperExec if one came."""
    run = pull(**given)
    if run is not None:
        with suppress(BlockingIOError, BrokenPipeError):  # it was told, or it is gone
            os.write(told, b".")
    return run


class OwnReply:
    """Flower's fetching of a message and sending of a reply, which belong together.

    Flower's SuperNode sends whatever reply it finds. If a run ends while its message is
    fetched, as when a SuperLink starts anew, the answer comes all the same. It would be
    taken for the reply to the next message, whose own would wait for the one after: all
    later runs would wait in vain.

    Parameters
    ----------
    pull, push : callable
        Flower's own.
    """

    def __init__(self, pull: Callable[..., Any], push: Callable[..., None]) -> None:
        self._pull, self._push = pull, push
        self._asked = ""  # id of the message

    def pull(self, *, receive: Callable[[], Any], **given: Any) -> Any:
        """Fetch a message."""

        def received() -> Any:
            found = receive()
            if found is not None:
                self._asked = found[0].metadata.message_id
            return found

        return self._pull(receive=received, **given)

    def push(self, *, state: Any, object_store: Any, **given: Any) -> None:
        """Wait for the reply to that message, and send it; drop all others."""

        def replies(**which: Any) -> list[Any]:
            own = []
            for reply in state.get_messages_legacy(**which):
                told = reply.metadata
                if told.reply_to_message_id == self._asked:
                    own.append(reply)
                else:
                    state.delete_messages(
                        message_ids=[told.message_id, told.reply_to_message_id]
                    )
                    object_store.delete(told.message_id)
            return own

        seen = SimpleNamespace(
            get_messages_legacy=replies,
            get_message_processing_duration=state.get_message_processing_duration,
            delete_messages=state.delete_messages,
        )
        self._push(state=seen, object_store=object_store, **given)


def wait_until_told(heard: int, longest_s: float) -> None:
    """Wait as Flower's SuperExec does, or until there is a message."""
    if select.select([heard], [], [], longest_s)[0] and not os.read(heard, 4096):
        time.sleep(longest_s)  # the SuperNode is gone


def look_again_sooner(module: Any, name: str, waits: tuple[float, float]) -> None:
    """Let a function of Flower wait less for the rest of a message.

    Whoever takes a message may do so as soon as its upload begins.
    """
    function = partial(
        getattr(module, name),
        initial_backoff=waits[0],
        backoff_cap=waits[1],
        max_tries_per_object=None,  # more of them fit into the same time
    )
    setattr(module, name, function)


def start_forks(heard: int, command: list[str]) -> Popen[bytes]:
    """Start the process that forks, in place of Flower's SuperExec.

    Parameters
    ----------
    heard : int
        Where the SuperExec is told of messages; its standard input.
    command : list of str
        ``flower-superexec`` and its options, as Flower's SuperNode starts it.
    """
    own = [sys.executable, "-P", str(Path(__file__).resolve()), _SERVE]
    try:
        return Popen([*own, *command[1:]], stdin=heard)
    finally:
        os.close(heard)


def serve(options: list[str]) -> None:
    """Fork for each message that the SuperExec tells of, until it is gone."""
    supernode = int(options[options.index(_PARENT) + 1])
    for name in preloaded(options):
        import_module(name)
    if os.getppid() != supernode:
        return
    gc.collect()
    gc.freeze()  # forks share these pages
    read, write = os.pipe()
    forks = Forks(write, supernode, os.getpid())
    heard = os.dup(0)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    if not os.fork():
        os.close(read)
        _seek(forks, heard, options)
        return
    os.close(write)
    os.close(heard)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for ClientApps
    with os.fdopen(read) as messages:
        for line in messages:
            if not os.fork():
                messages.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(json.loads(line))
                return
    if os.getppid() == supernode:
        end(supernode)


def preloaded(options: list[str]) -> list[str]:
    """Modules that answers need, and that draw and open nothing when imported.

    A run that may bring packages of its own may bring another PyTorch.
    """
    flower = ["flwr.supernode.cli.flwr_clientapp", "flwr.clientapp", "httpcore"]
    return flower if _INSTALL in options else [*flower, "torch", "safetensors.numpy"]


def answer(arguments: list[str]) -> None:
    """Be Flower's process of a ClientApp."""
    if drawn := sys.modules.get("numpy.random"):  # no two answers draw alike
        drawn.seed()
    app: Any = import_module("flwr.supernode.runtime.run_clientapp")
    look_again_sooner(app, "pull_and_inflate_object_from_tree", _FROM_SUPERNODE_S)
    app.install_from_fab = partial(unpack, app.install_from_fab)
    sys.argv = arguments
    import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()


def unpack(install: Callable[..., Path], bundle: bytes, **options: Any) -> Path:
    """Unpack a bundle, unless Flower has: it is slow to find out.

    Flower would unpack it elsewhere, check it, and then use the folder of its name,
    version and hash that is there.
    """
    names: Any = import_module("flwr.cli.config_utils")
    config: Any = import_module("flwr.common.config")
    digest = hashlib.sha256(bundle).hexdigest()
    try:
        folder: Path = config.get_project_dir(*names.get_fab_metadata(bundle), digest)
    except Exception:  # Flower says what is wrong with it
        return install(bundle, **options)
    return folder if folder.exists() else install(bundle, **options)


def _seek(forks: Forks, heard: int, options: list[str]) -> None:
    """Be Flower's SuperExec, with another way to start ClientApps."""
    module: Any = import_module("flwr.supercore.superexec.run_superexec")
    module.get_executor = lambda *_, **__: forks
    module.time = SimpleNamespace(sleep=partial(wait_until_told, heard))
    sys.argv = ["flower-superexec", *options]
    flower = import_module("flwr.supercore.cli.flower_superexec")
    forks.reconcile()
    flower.flower_superexec()


class Forks:
    """Flower's ``Executor`` that lets the other process fork.

    Parameters
    ----------
    write : int
        End of the pipe to that process.
    supernode, forker : int
        Processes of the SuperNode, and of that one, whose child this one is to be.
    """

    def __init__(self, write: int, supernode: int, forker: int) -> None:
        self._write, self._supernode, self._forker = write, supernode, forker

    def get_eligible_capacity(
        self, task_types: set[Any], **_: object
    ) -> tuple[set[Any], set[str]]:
        """Any number of ClientApps, and nothing else."""
        return {t for t in task_types if t == _CLIENT_APP}, set()

    def launch(self, spec: Any) -> Any:
        """Have a message answered."""
        results = import_module("flwr.supercore.superexec.executor").LaunchResult
        line = json.dumps(_arguments(spec, self._forker)) + "\n"
        try:
            os.write(self._write, line.encode())
        except BrokenPipeError:
            self.reconcile()
        return results.accepted()

    def reconcile(self) -> None:
        """End with the process that forks."""
        if os.getppid() != self._forker:
            end(self._supernode)
            sys.exit("supernode.py: the process that starts ClientApps is gone")

    def close(self) -> None:
        """Nothing is to be closed: the pipe ends with this process."""


def _arguments(spec: Any, forker: int) -> list[str]:
    """Command line of ``flwr-clientapp``."""
    found = [_CLIENT_APP, "--runtime-api-address", spec.runtime_api_address]
    found += ["--token", spec.token, _PARENT, str(forker)]
    if spec.insecure:
        found += ["--insecure"]
    elif spec.root_certificates_path is not None:
        found += ["--root-certificates", spec.root_certificates_path]
    if spec.runtime_dependency_install:
        found += [_INSTALL]
    return found


def end(supernode: int) -> None:
    """End a SuperNode that cannot answer any more."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(supernode, signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        with suppress(KeyboardInterrupt):
            serve(sys.argv[2:])
    else:
        main(sys.argv[1:])
        end(os.getpid())  # Flower has given up, and its server's thread would stay
