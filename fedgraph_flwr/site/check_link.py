"""The way to the SuperLink, and a run of this site's own clients alone."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shutil
import socket
import ssl
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from simulations.inline import run_inline

from ..core.errors import ConfigError
from ..core.files import whole_folder
from ..core.flower_names import sign_on
from ..core.rules import Value, read_toml, shown
from ..node.node_config import check_plugins
from ..resolve import Resolved, defaults, resolve
from ..results.model_files import FOLDER
from ..trained.model_folder import PLACES
from .findings import OK, PROBLEM, UNKNOWN, Finding, look

_PATIENCE_S = 10.0
_SKEW_S = 5.0  # SuperLinks refuse a signature from further in the future
_SOON_DAYS = 14
_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True, kw_only=True)
class Link:
    """How a SuperNode would reach its SuperLink; as the options of that command.

    Parameters
    ----------
    superlink : str
        HOST:PORT.
    root_certificates : path, optional
        CA file in PEM; None: those of the system.
    key : path, optional
        The SuperNode's private key.
    insecure : bool
        Without TLS, on loopback.
    """

    superlink: str
    root_certificates: Path | None
    key: Path | None
    insecure: bool

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises
        ------
        ConfigError
        """
        host, _, port = self.superlink.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ConfigError(
                f"--superlink must be HOST:PORT, got {self.superlink!r}; e.g."
                " fedgraph.example.org:9443"
            )
        return host.strip("[]"), int(port)


def check_link(link: Link) -> list[Finding]:
    """Look at the way to the SuperLink; nothing of the site's data is sent."""
    found = look("SuperLink", lambda: _reach(link), "check address, line and firewall")
    if found[0].state != OK:
        return found
    if not link.insecure:
        cure = "check the port; ask the coordinator what stands before the SuperLink"
        certificate = look("certificate", lambda: _certificate(link), cure)
        found += certificate
        if certificate[0].state != OK:
            return found  # nothing else passes
    found += look("clock", lambda: _clock(link), "compare the clock by hand")
    if link.key is None:
        return found
    cure = "start a SuperNode with this key and read its log"
    return found + look("key", lambda: _accepts_key(link), cure)


def _reach(link: Link) -> list[Finding]:
    host, port = link.address
    begin = time.monotonic()
    try:
        with socket.create_connection((host, port), _PATIENCE_S):
            rtt_s = time.monotonic() - begin
    except OSError as error:
        cure = "check the address, that the SuperLink runs, and the firewall on the way"
        proxies = [name for name in _PROXIES if os.environ.get(name)]
        if proxies:
            cure += f"; {proxies[0]} is set, and is not used here"
        found = f"{host}:{port} cannot be reached: {error}"
        return [Finding(what="SuperLink", state=PROBLEM, found=found, cure=cure)]
    reached = f"{host}:{port} answers in {1000 * rtt_s:.0f} ms"
    if link.insecure:
        return [Finding(what="SuperLink", state=OK, found=f"{reached}, without TLS")]
    return [Finding(what="SuperLink", state=OK, found=reached)]


def _context(link: Link) -> ssl.SSLContext:
    if link.root_certificates is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(link.root_certificates))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--root-certificates {link.root_certificates} cannot be read: {error};"
            " give the coordinator's ca.crt (PEM)"
        ) from error


def _certificate(link: Link) -> list[Finding]:
    host, port = link.address
    what, context = "certificate", _context(link)
    try:
        with (
            socket.create_connection((host, port), _PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            peer, version = wrapped.getpeercert(), wrapped.version()
    except ssl.SSLCertVerificationError as error:
        found = f"not accepted: {error.verify_message}"
        return [Finding(what=what, state=PROBLEM, found=found, cure=_cure(error))]
    except ssl.SSLError as error:
        found = f"{host}:{port} does not speak TLS: {error.reason}"
        cure = "check the port; or the SuperLink was started with --insecure"
        return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    ends = datetime.fromtimestamp(
        ssl.cert_time_to_seconds(str((peer or {})["notAfter"])), UTC
    )
    days = (ends - datetime.now(UTC)).days
    accepted, until = f"{version}, names {host}", f"valid until {ends:%Y-%m-%d}"
    if days < _SOON_DAYS:
        cure = "ask the coordinator for a new server certificate before then"
        return [
            Finding(what=what, state=OK, found=accepted),
            Finding(what=what, state=PROBLEM, found=until, cure=cure),
        ]
    return [Finding(what=what, state=OK, found=f"{accepted}, {until}")]


def _cure(error: ssl.SSLCertVerificationError) -> str:
    """Word what helps, by OpenSSL's number of the refusal."""
    by_number = {
        9: "set this machine's clock, or ask whether the certificate begins later",
        10: "ask the coordinator for a new server certificate; check this clock",
        62: "use the name in the certificate, or ask for one that names this host in"
        " subjectAltName",
        64: "ask for a certificate that names this address in subjectAltName",
        85: "ask the coordinator for one with authorityKeyIdentifier, as"
        " certificates.sh makes them; Python wants it since its version 3.13",
    }
    default = "use the ca.crt that signed the certificate of this SuperLink"
    return by_number.get(error.verify_code, default)


@contextmanager
def _http(link: Link) -> Iterator[HTTPConnection]:
    host, port = link.address
    connection = (
        HTTPConnection(host, port, timeout=_PATIENCE_S)
        if link.insecure
        else HTTPSConnection(host, port, timeout=_PATIENCE_S, context=_context(link))
    )
    try:
        yield connection
    finally:
        connection.close()


def _clock(link: Link) -> list[Finding]:
    """Compare this clock with the date that the SuperLink writes in its answers."""
    what = "clock"
    with _http(link) as connection:
        try:
            begin = time.time()
            connection.request("GET", "/health")
            date, end = connection.getresponse().getheader("date"), time.time()
        except (OSError, HTTPException) as error:
            found, cure = f"no answer over HTTP: {error}", "check the port"
            return [Finding(what=what, state=UNKNOWN, found=found, cure=cure)]
    if not date:
        found = "the SuperLink tells no date"
        cure = "compare the clock by hand: timedatectl"
        return [Finding(what=what, state=UNKNOWN, found=found, cure=cure)]
    there = parsedate_to_datetime(date).timestamp() + 0.5  # seconds are cut off
    skew = (begin + end) / 2 - there
    bound = _SKEW_S + (end - begin) / 2
    found = f"{skew:+.1f} s from that of the SuperLink"
    if abs(skew) > bound:
        cure = "synchronise it: timedatectl set-ntp true, or chrony"
        return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    return [Finding(what=what, state=OK, found=found)]


def _accepts_key(link: Link) -> list[Finding]:
    """Sign on with the site's key, and off at once."""
    assert link.key is not None
    private = _read_key(link.key)
    roots = None if link.root_certificates is None else str(link.root_certificates)
    if roots is None and not link.insecure:
        roots = ssl.get_default_verify_paths().cafile
    refusal = sign_on(link.superlink, private, insecure=link.insecure, roots=roots)
    if refusal is not None:
        return [_refused(link.key.name, refusal)]
    return [Finding(what="key", state=OK, found=f"{link.key.name} is admitted")]


def _refused(name: str, answer: httpx.Response) -> Finding:
    """Tell a refusal of the SuperLink, which is JSON, from one of a proxy."""
    code = answer.status_code
    if "json" in answer.headers.get("content-type", ""):
        found = f"{name} is refused (HTTP {code}): {answer.text[:200]}"
        cure = (
            f"send {name}.pub to the coordinator, who admits it: flwr supernode"
            " register; if a SuperNode runs with this key now, all is well, or stop"
            " it and check again"
        )
        return Finding(what="key", state=PROBLEM, found=found, cure=cure)
    found = f"no SuperLink has seen {name}: something before it answers HTTP {code}"
    cure = "check the port: sites have the coordinator's 9443"
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        cure = "ask the coordinator whether the SuperLink runs; " + cure
    return Finding(what="key", state=UNKNOWN, found=found, cure=cure)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if path.suffix == ".pub":
        raise ConfigError(f"{path} is the public half of a key; give the other half")
    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except PermissionError as error:
        raise ConfigError(
            f"{path} cannot be read by this user; type this command as the user of the"
            " SuperNode: runuser -u fedgraph -- ..."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a private key without password: {error}; make"
            " one: ssh-keygen -t ecdsa -b 384 -N '' -f site0"
        ) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"{path} is no ECDSA key; make one: ssh-keygen -t ecdsa -b 384 -N '' -f"
            " site0"
        )
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read by others than its owner; chmod 600 {path}"
        )
    return found


# What Flower's commands take of a text: keys and values. All else they pass over.
_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What a run of one client leaves, in a folder that goes after use.

    Parameters
    ----------
    results : path
        Results folder.
    model : path
        The model folder that the client keeps.
    """

    results: Path
    model: Path


def add_run_config(parser: argparse.ArgumentParser) -> None:
    """Describe the option that :func:`read_run_config` reads."""
    parser.add_argument(
        "--run-config", nargs="+", default=[], metavar="CONFIG",
        help="the run config of the run, as for flwr run: text or a TOML file",
    )  # fmt: skip


def parse_config(given: list[str], option: str) -> dict[str, Any]:
    """Read keys and values as Flower's commands do: a TOML file, or texts.

    Raises
    ------
    ConfigError
        Or a text has what Flower passes over, without a word.
    """
    if len(given) == 1 and given[0].endswith(".toml"):
        return dict(_flat(read_toml(Path(given[0]).expanduser())))
    if left := " ".join(_PAIR.sub(" ", " ".join(given)).replace(",", " ").split()):
        raise ConfigError(
            f"{option} has {shown(left)}, which Flower leaves out without a word; write"
            " key=value without spaces around =, pairs separated by spaces, texts in"
            " quotes without quotes inside; or give one TOML file"
        )
    table: dict[str, Any] = {}
    try:
        for text in given:
            lines = [f"{key} = {value}" for key, value in _PAIR.findall(text)]
            table |= tomllib.loads("\n".join(lines))
    except ValueError as error:
        raise ConfigError(
            f"{option} cannot be read: {error}; texts stand in double quotes"
        ) from error
    return dict(_flat(table))


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def read_run_config(
    given: list[str], node: Mapping[str, Any] = MappingProxyType({})
) -> Resolved:
    """Read and check a run config, as ``flwr run --run-config`` takes it.

    Raises
    ------
    ConfigError
        It cannot be read, ``resolve`` refuses it, or it names a plug-in that a site
        with this node-config does not import.
    """
    config = {**defaults(), **parse_config(given, "--run-config")}
    check_plugins(config, node)
    return resolve(config)


@contextlib.contextmanager
def run_one(
    config: Mapping[str, Value], folder: Path, client: int, own: Mapping[str, str]
) -> Iterator[Trial]:
    """Run one client as its SuperNode does, on the data of ``folder``.

    Parameters
    ----------
    config : mapping
        Run config; folders in it are left out.
    folder : path
    client : int
    own : mapping
        Further keys of the site's node-config.

    Raises
    ------
    FedGraphError
        As a run does.
    """
    resolved = resolve({**defaults(), **config, **dict.fromkeys(PLACES, "")})
    count = resolved.settings.num_clients
    if not 0 <= client < count:
        raise ConfigError(
            f"--client must be in 0..{count - 1}, as num-clients is {count}, got"
            f" {client}; give the id that this site has (clients of --node-config)"
        )
    with tempfile.TemporaryDirectory(prefix="fedgraph-") as scratch:
        node = {
            "clients": str(client),
            "data-path": str(folder.expanduser().absolute()),
            "state-dir": f"{scratch}/state",
            **own,
        }
        run_config = {
            **resolved.to_config(),
            "results-dir": f"{scratch}/results",
            "client-fraction": 1.0,
            "held-out-clients": "",
            "evaluate-on": "own",
        }
        with _quietly():
            results = run_inline(run_config, node_configs=[node], only=[client])
        state = Path(scratch) / "state" / results.name / f"client-{client}"
        yield Trial(results=results, model=state / FOLDER)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the lines of a run from the output of a command; warnings stay."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


def keep(model: Path, out: Path) -> None:
    """Copy a model folder to a place that is free, whole or not at all.

    Raises
    ------
    ConfigError
        There is something already, or it cannot be written.
    """
    try:
        with whole_folder(out) as partial:
            shutil.copytree(model, partial)
    except OSError as error:
        raise ConfigError(
            f"--out {out} cannot be written: {error}; choose a folder that is not there"
            " yet, on a disk with room"
        ) from error
