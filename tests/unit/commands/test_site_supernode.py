"""``site/supernode.py``: options, waits, and what its forks start with."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedgraph_flwr.site import supernode


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


def test_it_does_not_start_with_a_node_config_that_flower_would_cut() -> None:
    """A site with spaces around = of its policy had none."""
    text = "clients=\"0\" policy = '/p.toml' a=1"
    for given in (
        ["--node-config", text],
        [f"--node-config={text}"],
        ["--node-conf", text],  # argparse takes it for the whole name
        ["--node-config", "a=1", "--node-config", text],
    ):
        with pytest.raises(SystemExit, match=r"has \"policy = '/p.toml'\", which Flo"):
            supernode.main(["--insecure", *given, "--port", "9100"])
    for text in ("", "/etc/node.toml", "a=1 b=\"x y\",\nc='d=e'", "a={b=1}"):
        assert not supernode.left_out(text)


def test_it_is_flowers_supernode_with_other_waits_and_another_superexec(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internal = import_module("flwr.supernode.start_client_internal")
    flower = import_module("flwr.supernode.cli.flower_supernode")
    pull, push = internal._pull_and_store_message, internal._push_messages
    changed = ("_pull_and_store_message", "_push_messages", "pull_objects")
    for name in ("time", "subprocess", *changed):
        monkeypatch.setattr(internal, name, getattr(internal, name))
    monkeypatch.setattr(sys, "argv", ["supernode.py"])
    found: list[object] = []

    def be_it() -> None:
        found.extend([sys.argv, internal.time.sleep.__self__, internal.subprocess])

    monkeypatch.setattr(flower, "flower_supernode", be_it)

    supernode.main(["--superlink", "there:9443"])

    assert found[0] == ["flower-supernode", "--superlink", "there:9443"]
    assert isinstance(found[1], supernode.Waits)
    started = found[2].Popen  # type: ignore[attr-defined]
    assert started.func is supernode.start_forks
    told, pulled = internal._pull_and_store_message.args
    own = pulled.__self__
    assert internal._push_messages == own.push
    assert (own._pull, own._push) == (pull, push)
    options = inspect.signature(internal.pull_objects).parameters
    assert options["initial_backoff"].default == 0.1
    assert options["backoff_cap"].default == 10
    for end in (told, *started.args):
        os.close(end)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_no_pipe_becomes_the_standard_input() -> None:
    """Of a SuperNode that was started with none."""
    code = (
        "import os, sys; from importlib import import_module\n"
        "from fedgraph_flwr.site import supernode\n"
        "flower = import_module('flwr.supernode.cli.flower_supernode')\n"
        "import_module('flwr.supernode.start_client_internal'); os.close(0)\n"
        "flower.flower_supernode = lambda: print(os.readlink('/proc/self/fd/0'))\n"
        "supernode.main([])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert done.stdout == "/dev/null\n", done.stderr


def test_a_supernode_that_has_given_up_ends_though_a_thread_of_flowers_goes_on() -> (
    None
):
    """Flower logs most errors of its link and returns; systemd saw it as active."""
    code = (
        "import runpy, threading, time; from importlib import import_module\n"
        "flower = import_module('flwr.supernode.cli.flower_supernode')\n"
        "stays = threading.Thread(target=time.sleep, args=(60,))\n"
        "flower.flower_supernode = stays.start\n"
        f"runpy.run_path({supernode.__file__!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, timeout=50
    )

    assert done.returncode == -signal.SIGTERM, done.stderr


def test_the_superexec_keeps_the_options_that_flower_gives_it(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(supernode, "Popen", lambda c, **_: started.append(c))
    given = ["--insecure", "--runtime-api-address", "127.0.0.1:9", "--parent-pid", "7"]

    supernode.start_forks(pipe[0], ["flower-superexec", *given])

    (command,) = started
    assert command == [sys.executable, "-P", supernode.__file__, "--serve", *given]


def test_a_run_with_packages_of_its_own_finds_no_other_torch() -> None:
    own = "--allow-runtime-dependency-installation"

    assert "torch" in supernode.preloaded(["--insecure"])
    assert "torch" not in supernode.preloaded(["--insecure", own])


def test_an_answer_waits_less_and_draws_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = import_module("flwr.supernode.runtime.run_clientapp")
    flower = import_module("flwr.supernode.cli.flwr_clientapp")
    name = "pull_and_inflate_object_from_tree"
    monkeypatch.setattr(app, name, getattr(app, name))
    monkeypatch.setattr(app, "install_from_fab", app.install_from_fab)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(flower, "flwr_clientapp", lambda: None)
    drawn = []
    for _ in range(2):
        np.random.seed(1)  # noqa: NPY002 - what a fork would find
        supernode.answer(["flwr-clientapp", "--insecure"])
        drawn.append(np.random.random())  # noqa: NPY002

    found = inspect.signature(getattr(app, name)).parameters
    assert (found["initial_backoff"].default, found["backoff_cap"].default) == (
        *(0.05, 0.2),
    )
    assert found["max_tries_per_object"].default is None
    assert app.install_from_fab.func is supernode.unpack
    assert sys.argv == ["flwr-clientapp", "--insecure"]
    assert drawn[0] != drawn[1]


def test_a_message_reaches_the_process_that_forks(pipe: tuple[int, int]) -> None:
    read, write = pipe

    result = supernode.Forks(write, 4711, os.getppid()).launch(spec())

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

    supernode.Forks(write, 4711, os.getppid()).launch(secured)

    arguments = json.loads(os.read(read, 4096))
    assert arguments[-3:] == [
        *("--root-certificates", "ca"),
        "--allow-runtime-dependency-installation",
    ]
    assert "--insecure" not in arguments


def test_what_is_no_clientapp_is_left_to_others() -> None:
    kinds = set(import_module("flwr.supercore.constant").TaskType)

    found, _ = supernode.Forks(0, 4711, 1).get_eligible_capacity(kinds)

    assert found == {"flwr-clientapp"}


def test_the_supernode_ends_with_the_process_that_forks(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    forks = supernode.Forks(pipe[1], 4711, os.getppid())
    ended: list[int] = []
    monkeypatch.setattr(supernode, "end", ended.append)
    forks.reconcile()
    assert not ended

    monkeypatch.setattr(os, "getppid", lambda: 1)

    with pytest.raises(SystemExit, match="is gone"):
        forks.reconcile()
    assert ended == [4711]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that sleep moves on; ``slept`` are the waits."""
    found = SimpleNamespace(now=100.0, slept=[])

    def sleep(seconds: float) -> None:
        found.slept.append(seconds)
        found.now += seconds

    fake = SimpleNamespace(monotonic=lambda: found.now, sleep=sleep)
    monkeypatch.setattr(supernode, "time", fake)
    return found


def test_waits_grow_and_begin_anew_for_something_else(clock: SimpleNamespace) -> None:
    waits = supernode.Waits()
    for _ in range(80):
        waits.sleep(3)
    clock.now += 60  # a message came, and took a minute
    waits.sleep(0.5)
    waits.sleep(3)

    idle = clock.slept[:80]
    assert idle[0] == clock.slept[81] == pytest.approx(0.1)
    assert idle == sorted(idle)
    assert idle[-1] == 3  # as Flower's
    assert clock.slept[80] == pytest.approx(0.5 / 30)
    # No wait is longer than a tenth of the time before it, but for the first ones.
    begins = [sum(idle[:i]) for i in range(80)]
    assert all(s <= max(0.1, 0.1 * b) + 1e-9 for s, b in zip(idle, begins, strict=True))


def test_who_answers_slowly_is_asked_seldom(clock: SimpleNamespace) -> None:
    waits = supernode.Waits()
    waits.sleep(3)
    for look_s in (0.05, 0.2, 0.5, 2.0):
        clock.now += look_s
        waits.sleep(3)

    assert clock.slept == pytest.approx([0.1, 0.15, 0.6, 1.5, 3.0])


def test_a_reply_in_its_own_memory_is_looked_for_often(clock: SimpleNamespace) -> None:
    waits = supernode.Waits()
    waits.sleep(0.5)
    clock.now += 0.04  # parts of the reply were sent meanwhile
    waits.sleep(0.5)

    assert clock.slept == pytest.approx([0.5 / 30, 0.5 / 30])


def test_the_superexec_is_told_of_a_message(pipe: tuple[int, int]) -> None:
    heard, told = pipe
    os.set_blocking(told, False)
    begin = time.monotonic()

    assert supernode.tell(told, lambda **given: given["run"], run=7) == 7
    supernode.wait_until_told(heard, 60)
    assert time.monotonic() - begin < 30

    assert supernode.tell(told, lambda **_: None) is None
    assert not select.select([heard], [], [], 0)[0]


@pytest.mark.usefixtures("task_identity")
def test_an_answer_to_a_run_that_has_ended_is_not_taken_for_the_next_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internal: Any = import_module("flwr.supernode.start_client_internal")
    objects = ObjectStoreFactory().store()
    state = InMemoryNodeState(objects)
    monkeypatch.setattr(state, "get_message_processing_duration", lambda **_: 0.0)
    asked = [Message(RecordDict(), dst_node_id=1, message_type="query") for _ in "ab"]
    for number, message in enumerate(asked):
        message.metadata.__dict__["_message_id"] = f"{number:064x}"
    replies = [Message(RecordDict(), reply_to=message) for message in asked]
    sent = []

    def send(message: Message, *_: object) -> tuple[set[str], str]:
        sent.append(message.metadata.reply_to_message_id)
        return set(), ""

    def pull(receive: Any, **_: object) -> int:
        receive()
        return 7

    own = supernode.OwnReply(pull, internal._push_messages)
    for message in asked:
        own.pull(receive=partial(tuple, [message, None]))
    for reply in replies:
        internal._insert_message(reply, state, objects)
    own.push(state=state, object_store=objects, send=send, push_object=None)
    assert sent == [asked[1].metadata.message_id]
    assert not state.get_messages_legacy(is_reply=True)


def test_the_supernode_never_waits_for_the_superexec(pipe: tuple[int, int]) -> None:
    heard, told = pipe
    os.set_blocking(told, False)
    for _ in range(2**17):  # more than a pipe holds
        supernode.tell(told, lambda: 7)
    os.close(heard)

    assert supernode.tell(told, lambda: 7) == 7


def test_the_superexec_waits_as_flowers_if_nobody_tells(
    pipe: tuple[int, int], clock: SimpleNamespace
) -> None:
    heard, told = pipe
    supernode.wait_until_told(heard, 0.01)
    assert clock.slept == []
    os.close(told)
    supernode.wait_until_told(heard, 3)

    assert clock.slept == [3]


def test_the_superexec_waits_until_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("flwr.supercore.superexec.run_superexec")
    flower = import_module("flwr.supercore.cli.flower_superexec")
    for name in ("time", "get_executor"):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(flower, "flower_superexec", lambda: None)
    forks = supernode.Forks(0, 4711, os.getppid())

    supernode._seek(forks, 5, ["--insecure"])

    assert module.time.sleep.func is supernode.wait_until_told
    assert module.time.sleep.args == (5,)
    assert module.get_executor() is forks


def test_a_bundle_is_unpacked_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under the name that Flower gives it, so that Flower finds it and nothing else."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    bundle, other = (make_bundle(text) for text in ("x = 1", "x = 2"))
    flower = import_module("flwr.cli.install")
    calls: list[bytes] = []

    def install(content: bytes, **options: Any) -> Path:
        calls.append(content)
        found: Path = flower.install_from_fab(content, **options)
        return found

    found = [supernode.unpack(install, b, skip_prompt=True) for b in (bundle, bundle)]
    changed = supernode.unpack(install, other, skip_prompt=True)

    assert calls == [bundle, other]
    # A folder of another project with the same hash in its name is none of this one's.
    third = make_bundle("x = 3")
    name = hashlib.sha256(third).hexdigest()[:8]
    (found[0].parent / f"others.p.1.0.0.{name}").mkdir()
    assert supernode.unpack(install, third, skip_prompt=True).name.startswith("us.p.")
    assert calls[2:] == [third]
    with pytest.raises(Exception, match="zip"):  # as Flower words it
        supernode.unpack(install, b"no bundle", skip_prompt=True)
    assert found[0] == found[1] == flower.install_from_fab(bundle, skip_prompt=True)
    assert (found[0] / "own.py").read_text() == "x = 1"
    assert (changed / "own.py").read_text() == "x = 2"


def make_bundle(text: str) -> bytes:
    """Pack a project of one module as ``flwr build`` does."""
    project = (
        '[project]\nname = "p"\nversion = "1.0.0"\nlicense = {file = "LICENSE"}\n'
        'dependencies = ["flwr>=1.41.0"]\n'
        '[tool.flwr.app]\npublisher = "us"\nfab-format-version = 1\n'
        'flwr-version-target = "1.41.0"\n'
        '[tool.flwr.app.components]\nserverapp = "own:a"\nclientapp = "own:b"\n'
    )
    files = {"pyproject.toml": project, "own.py": text, "LICENSE": "none"}
    listed = "\n".join(
        f"{name},{hashlib.sha256(content.encode()).hexdigest()},8"
        for name, content in files.items()
    )
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in {**files, ".info/CONTENT": listed}.items():
            archive.writestr(name, content)
    return made.getvalue()


def test_a_fork_begins_as_a_new_process_would() -> None:
    packages = ["fedgraph_flwr", "clients", "strategies", "datasets", "simulations"]
    code = (
        "import os, runpy, sys\n"
        f"own = runpy.run_path({supernode.__file__!r})\n"
        "for name in own['preloaded']([]): __import__(name)\n"
        f"found = [m for m in sys.modules if m.split('.')[0] in {packages}]\n"
        "assert not found, found\n"
        "if not os.fork():\n"
        "    assert len(os.listdir('/proc/self/task')) == 1\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
    )

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
