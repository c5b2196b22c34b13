"""nginx before a SuperLink: sites reach Fleet, analysts Control by certificate.

Everything is started from the files of ``examples/deployment``.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from deployment_files import (
    EXAMPLES,
    changed,
    start_command,
    superlink_command,
    variables,
)
from federation import Federation, environment, listens
from typing_extensions import override

from fedgraph_flwr.core.rules import Value
from fedgraph_flwr.results.reader import load_summary
from simulations import flower

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin") is None,
        reason="nginx is not installed: apt-get install nginx-light",
    ),
]
SITES = {
    "north": 'clients="0"',
    "west": 'clients="1,3"',
    "south": 'clients="2"',
}
RUN: dict[str, Value] = {
    "method": "gcfl+",
    "dataset": "synthetic",
    "num-clients": 4,
    "num-server-rounds": 99,  # it ends with the federation
    "hidden-dim": 8,
    "min-fit-replies": 0.5,
    "late-after-s": 15,
}
FLEET, CONTROL = "/v1/fleet/pull-messages", "/v1/control/list-runs"


class Guarded(Federation):
    """A SuperLink behind nginx, and SuperNodes with keys, over TLS.

    Parameters
    ----------
    folder : path
    sites : mapping from str to str
        Name of each site, and its node-config without name and ``state-dir``.
    """

    SPARE_PORTS = 3

    def __init__(self, folder: Path, sites: Mapping[str, str]) -> None:
        self._names = list(sites)
        self._tls = folder / "certificates"
        script = ["sh", str(EXAMPLES / "certificates.sh"), "127.0.0.1", str(self._tls)]
        subprocess.run([*script, "alice"], check=True)
        for number in range(len(sites)):
            key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f"]
            subprocess.run([*key, str(folder / f"site{number}")], check=True)
        configs = [f'{given} site-name="{name}"' for name, given in sites.items()]
        # Flower's own heartbeat: on a busy machine nodes miss shorter ones.
        processes = {**environment(folder / "flwr"), "FEDGRAPH_HEARTBEAT_S": ""}
        super().__init__(folder, processes, configs)

    @property
    def fleet_port(self) -> int:
        return self.spare_port

    @property
    def control_port(self) -> int:
        return self.spare_port + 1

    @property
    def analyst_port(self) -> int:
        return self.spare_port + 2

    @override
    def profile(self) -> str:
        return f'address = "127.0.0.1:{self.analyst_port}"\ninsecure = true\n'

    @override
    def superlink_command(self) -> list[str]:
        return superlink_command(self.folder, self._tls, self.address)

    @override
    def site_command(self, number: int, port: int, node_config: str) -> list[str]:
        site = self.folder / f"certificates-{number}"  # what the coordinator hands out
        site.mkdir()
        shutil.copy(self._tls / "ca.crt", site)
        shutil.copy(self.folder / f"site{number}", site / "site")
        values = {
            "SUPERLINK": f"127.0.0.1:{self.fleet_port}",
            "CERTIFICATES": str(site),
            "NODE_CONFIG": node_config,
        }
        assert values.keys() <= variables("supernode.env").keys()
        words = start_command("fedgraph-supernode.service", values)
        words[0] = Path(words[0]).name
        words[words.index("--port") + 1] = str(port)
        return words

    @override
    def register_keys(self) -> None:
        for number in range(len(self._names)):
            key = str(self.folder / f"site{number}.pub")
            begin = time.monotonic()
            while True:
                done = self.flwr("supernode", "register", key, "site")
                is_up = "502 Bad Gateway" not in done.stdout + done.stderr
                if is_up or time.monotonic() > begin + 60:
                    break
                time.sleep(1)  # it listens before it answers
            logs = [p.read_text()[-2000:] for p in sorted(self.folder.glob("*.log"))]
            assert done.returncode == 0, (done.stdout + done.stderr, *logs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guarded")


@contextmanager
def proxies(guarded: Guarded) -> Iterator[None]:
    """Start the coordinator's nginx and the analyst's, from the files of the pages."""
    folder = guarded.folder
    tls = str(folder / "certificates")
    site = changed(
        "nginx-coordinator.conf",
        {
            "127.0.0.1:9000": guarded.address,
            "9443": str(guarded.fleet_port),
            "9444": str(guarded.control_port),
            "/etc/fedgraph": tls,
            "/var/log/nginx": str(folder),
        },
    )
    (folder / "fedgraph.conf").write_text(site)
    # As Debian's nginx.conf includes what lies in conf.d.
    own = "user root;\n" if os.geteuid() == 0 else ""
    main = f"{own}pid {folder}/nginx.pid;\nerror_log stderr;\ndaemon off;\nevents {{}}"
    main += f"\nhttp {{\naccess_log {folder}/access.log;\n"
    main += f"client_body_temp_path {folder}/body;\nproxy_temp_path {folder}/proxy;\n"
    main += f"include {folder}/fedgraph.conf;\n}}\n"
    (folder / "nginx.conf").write_text(main)
    analyst = changed(
        "nginx-analyst.conf",
        {
            "/tmp/": f"{folder}/",
            "9300": str(guarded.analyst_port),
            "HOST:9444": f"127.0.0.1:{guarded.control_port}",
            "/etc/fedgraph/analyst": f"{tls}/analyst-alice",
            "/etc/fedgraph": tls,
        },
    )
    (folder / "analyst.conf").write_text(own + analyst)
    started = []
    try:
        for name in ("nginx.conf", "analyst.conf"):
            with (folder / f"{name}.log").open("w") as log:
                command = ["/usr/sbin/nginx", "-c", str(folder / name)]
                started.append(subprocess.Popen(command, stderr=log))
        for port in (guarded.control_port, guarded.analyst_port):
            begin = time.monotonic()
            while not listens(port):
                assert time.monotonic() < begin + 60, "no nginx; see its log"
                time.sleep(0.1)
        yield
    finally:
        for proxy in started:
            proxy.terminate()
            proxy.wait(20)


@pytest.fixture(scope="module")
def federation(folder: Path) -> Iterator[Guarded]:
    """The federation and both proxies; they serve every test of this module."""
    guarded = Guarded(folder, SITES)
    with proxies(guarded), guarded:
        yield guarded


def status(
    folder: Path, port: int, path: str, *, who: str = "", method: str = "POST"
) -> int:
    """HTTP status of a path as it is spelt, asked with a certificate or without."""
    context = ssl.create_default_context(cafile=str(folder / "certificates/ca.crt"))
    if who:
        stem = folder / "certificates" / who
        context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
    asked = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        asked.putrequest(method, path, skip_accept_encoding=True)
        asked.putheader("content-type", "application/protobuf")
        asked.putheader("accept", "application/protobuf")
        asked.putheader("content-length", "0")
        asked.endheaders()
        return asked.getresponse().status
    finally:
        asked.close()


def test_sites_reach_fleet_and_nothing_else(federation: Guarded, folder: Path) -> None:
    port = federation.fleet_port
    # It is the SuperLink that asks who they are.
    assert status(folder, port, FLEET) == 401
    for path in (
        CONTROL,
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/%2e%2e%2fcontrol%2flist-runs",
        "//v1//control/list-runs",
        "/v1/fleet/;/../../control/list-runs",
        "/V1/control/list-runs",
        f"{FLEET}%0a",
        f"{FLEET}%0d%0aX:%20y",
        f"{FLEET}/../../control/list-runs",
        "/openapi.json",
        "/",
    ):
        assert status(folder, port, path) == 403, path
        assert status(folder, port, path, who="analyst-alice") == 403, path
    assert status(folder, port, FLEET, method="GET") == 403


def test_control_asks_for_an_analysts_certificate(
    federation: Guarded, folder: Path
) -> None:
    port = federation.control_port
    assert status(folder, port, CONTROL) == 400  # no certificate
    # What the sites' authority signed opens nothing; here its only certificate.
    assert status(folder, port, CONTROL, who="server") == 400
    assert status(folder, port, CONTROL, who="analyst-alice") == 200
    for path in (FLEET, "/v1/control/../fleet/pull-messages", "/v1/runtime/get-nodes"):
        assert status(folder, port, path, who="analyst-alice") == 403, path
    log = (folder / "fedgraph-control.log").read_text()
    assert f'"CN=alice" 200 {CONTROL}' in log


def test_a_site_cannot_start_runs(federation: Guarded, folder: Path) -> None:
    """With all that a site has: an address and the authority of the server."""
    for port in (federation.fleet_port, federation.control_port):
        home = folder / f"intruder-{port}"
        given = environment(home)
        ca = folder / "certificates" / "ca.crt"
        (home / "config.toml").write_text(
            f'[superlink.site]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{ca}"\n'
        )
        flwr = federation.flwr("ls", "site", env={**given})
        assert flwr.returncode != 0, flwr.stdout


def deploy(
    federation: Guarded, config: dict[str, Value], results: Path
) -> tuple[dict, str]:
    """Run to the end; return summary and log."""
    run_id = federation.submit({**config, "results-dir": str(results)})
    ended = federation.wait(run_id, limit_s=600)
    assert results.is_dir(), f"{ended}\n{federation.log(run_id)}"
    (path,) = (p for p in results.iterdir() if p.is_dir())  # and the audit log
    return load_summary(path), federation.log(run_id)


def test_a_late_site_is_named_and_comes_back(
    federation: Guarded, folder: Path, tmp_path: Path
) -> None:
    results = tmp_path / "late"
    run_id = federation.submit({**RUN, "results-dir": str(results)})
    await_that(lambda: gauge(results, "site_last_round", "west") > 0)
    with stopped_client_apps(folder / "flwr", federation.pid("site-1")):
        await_that(lambda: gauge(results, "site_failures_total", "west") >= 2)
    failed_in = gauge(results, "site_last_round", "north")
    # It comes back, however busy the machine is.
    await_that(lambda: gauge(results, "site_last_round", "west") > failed_in)
    log = federation.log(run_id)
    assert "(west) did not answer within late-after-s = 15" in log
    assert "failed (west)" in log
    assert gauge(results, "site_failures_total", "west") % 2 == 0  # both its clients
    assert gauge(results, "site_failures_total", "north") == 0


def gauge(results: Path, name: str, site: str) -> int:
    """Value of a site's metric in the run's ``metrics.prom``, 0 before it is there."""
    for path in results.glob("*/metrics.prom"):
        for line in path.read_text().splitlines():
            if line.startswith(f"fedgraph_{name}{{") and f'site="{site}"' in line:
                return int(line.rsplit(" ", 1)[1])
    return 0


def await_that(is_so: Callable[[], bool], limit_s: float = 300) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.5)


@contextmanager
def stopped_client_apps(home: Path, supernode: int) -> Iterator[None]:
    """Stop every process in which a SuperNode's clients train, until the block ends.

    One that has answered and is about to exit may be found first, so later ones
    are stopped as well.
    """
    stopped: set[int] = set()
    ended = threading.Event()

    def stop() -> None:
        while not ended.wait(0.05):
            for pid in set(flower.pids(home, "flwr-clientapp")) - stopped:
                with suppress(ProcessLookupError, psutil.NoSuchProcess):
                    if supernode in {p.pid for p in psutil.Process(pid).parents()}:
                        os.kill(pid, signal.SIGSTOP)
                        stopped.add(pid)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert stopped, "no ClientApp has started"
