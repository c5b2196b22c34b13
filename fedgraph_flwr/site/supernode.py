"""A SuperNode whose answers start at once: ``python supernode.py OPTIONS``.

Flower starts Python for each message, which imports Flower and PyTorch again. Here one
process has imported both, and a fork of it answers each message. Waits for messages and
replies grow with the time waited so far, where those of Flower's SuperNode are 3 s and
0.5 s. The options are those of ``flower-supernode``, and the answers are the same.

Three processes belong together: Flower's SuperNode, its SuperExec, which waits for
messages, and the one that forks. When one of them is gone the others end, so that
systemd starts all anew. This file imports nothing of this project: code of runs comes
with their bundles, and no other version of it may be there before.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, Popen
from types import SimpleNamespace
from typing import Any

_SERVE = "--serve"  # first argument of the process that forks
# What answers need; none of it starts a thread, draws or opens anything when imported.
_PRELOAD = ("flwr.supernode.cli.flwr_clientapp", "flwr.clientapp", "torch")
_PROCESS = "process"  # Flower's word for ClientApps that others start
_SHARE = 0.1  # of the time waited so far is the next wait ...
_LEAST = 1 / 6  # ... and at least this part of Flower's own
_AGAIN_S = 0.05  # until an answer looks again for what still arrives; Flower's is 1 s


def main(given: list[str]) -> None:
    """Start the process that forks, and be the SuperNode."""
    flower = import_module("flwr.supernode.cli.flower_supernode")
    options = flower._parse_args_run_supernode().parse_args(given)
    if options.isolation == _PROCESS:
        sys.exit(
            f"supernode.py: --isolation {_PROCESS} means that you start ClientApps"
            " yourself, which this program does; leave it out, or use flower-supernode"
        )
    command = [sys.executable, "-P", str(Path(__file__).resolve()), _SERVE]
    Popen([*command, *_superexec_options(options)], stdin=DEVNULL)
    waits: Any = import_module("flwr.supernode.start_client_internal")
    waits.time = SimpleNamespace(sleep=Waits().sleep)
    sys.argv = ["flower-supernode", *given, "--isolation", _PROCESS]
    flower.flower_supernode()


class Waits:
    """Waits that grow with the time that something has been waited for."""

    def __init__(self) -> None:
        self._longest_s, self._begin = 0.0, 0.0

    def sleep(self, longest_s: float) -> None:
        """Wait for what Flower waits for so long at a time."""
        now = time.monotonic()
        if longest_s != self._longest_s:  # for something else than before
            self._longest_s, self._begin = longest_s, now
        share_s = _SHARE * (now - self._begin)
        time.sleep(min(longest_s, max(_LEAST * longest_s, share_s)))


def _superexec_options(options: Any) -> list[str]:
    """Options of ``flower-superexec`` that fit those of a SuperNode."""
    bind = import_module("flwr.supercore.address").resolve_bind_address
    host = f"[{options.host}]" if ":" in options.host else options.host
    found = ["--runtime-api-address", str(bind(f"{host}:{options.port}"))]
    if options.ssl_certfile is None:
        found += ["--insecure"]
    elif options.ssl_ca_certfile is not None:
        found += ["--root-certificates", options.ssl_ca_certfile]
    if options.superexec_auth_secret_file is not None:
        found += ["--superexec-auth-secret-file", options.superexec_auth_secret_file]
    if options.runtime_dependency_install:
        found += ["--allow-runtime-dependency-installation"]
    return [*found, "--parent-pid", str(os.getpid())]


def serve(options: list[str]) -> None:
    """Fork for each message that the SuperExec tells of, until it is gone."""
    supernode = os.getppid()
    for name in _PRELOAD:
        import_module(name)
    gc.collect()
    gc.freeze()  # forks share these pages
    read, write = os.pipe()
    if not os.fork():
        os.close(read)
        _seek(Forks(write, supernode), options)
        return
    os.close(write)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for ClientApps
    with os.fdopen(read) as messages:
        for line in messages:
            if not os.fork():
                messages.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _answer(json.loads(line))
                return
    if os.getppid() == supernode:
        end(supernode)


def _answer(arguments: list[str]) -> None:
    """Be Flower's process of a ClientApp."""
    app: Any = import_module("flwr.supernode.runtime.run_clientapp")
    app.pull_and_inflate_object_from_tree = partial(
        app.pull_and_inflate_object_from_tree, initial_backoff=_AGAIN_S
    )
    sys.argv = arguments
    import_module("flwr.supernode.cli.flwr_clientapp").flwr_clientapp()


def _seek(forks: Forks, options: list[str]) -> None:
    """Be Flower's SuperExec, with another way to start ClientApps."""
    module: Any = import_module("flwr.supercore.superexec.run_superexec")
    module.get_executor = lambda *_, **__: forks
    sys.argv = ["flower-superexec", *options]
    import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


class Forks:
    """Flower's ``Executor`` that lets the other process fork.

    Parameters
    ----------
    write : int
        End of the pipe to that process, which is this one's parent.
    supernode : int
        Process of the SuperNode.
    """

    def __init__(self, write: int, supernode: int) -> None:
        self._write, self._supernode = write, supernode
        self._forker = os.getppid()

    def get_eligible_capacity(
        self, task_types: set[Any], **_: object
    ) -> tuple[set[Any], set[str]]:
        """Any message may come."""
        return task_types, set()

    def launch(self, spec: Any) -> Any:
        """Have a message answered."""
        results = import_module("flwr.supercore.superexec.executor").LaunchResult
        if spec.task_type != "flwr-clientapp":
            return results.failed(f"a SuperNode starts no {spec.task_type}")
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
    found = ["flwr-clientapp", "--runtime-api-address", spec.runtime_api_address]
    found += ["--token", spec.token, "--parent-pid", str(forker)]
    if spec.insecure:
        found += ["--insecure"]
    elif spec.root_certificates_path is not None:
        found += ["--root-certificates", spec.root_certificates_path]
    if spec.runtime_dependency_install:
        found += ["--allow-runtime-dependency-installation"]
    return found


def end(supernode: int) -> None:
    """End a SuperNode that cannot answer any more."""
    with suppress(ProcessLookupError):
        os.kill(supernode, signal.SIGTERM)


if __name__ == "__main__":
    if sys.argv[1:2] == [_SERVE]:
        serve(sys.argv[2:])
    else:
        main(sys.argv[1:])
