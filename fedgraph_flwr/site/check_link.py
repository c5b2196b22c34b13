"""The way to the SuperLink: TLS, certificate, clock, and the key of the SuperNode."""

from __future__ import annotations

import socket
import ssl
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from ..core.errors import ConfigError
from ..core.flower_names import sign_on
from .findings import UNKNOWN, Findings

_PATIENCE_S = 10.0
_SKEW_S = 5.0  # SuperLinks refuse a signature from further in the future
_SOON_DAYS = 14
# What helps, by OpenSSL's number of the refusal.
_CURES = {
    9: "set this machine's clock, or ask whether the certificate begins later",
    10: "ask the coordinator for a new server certificate; check this clock",
    62: "use the name in the certificate, or ask for one that names this host in"
    " subjectAltName",
    64: "ask for a certificate that names this address in subjectAltName",
    85: "ask the coordinator for one with authorityKeyIdentifier, as certificates.sh"
    " makes them; Python wants it since its version 3.13",
}


def check_link(
    table: Findings,
    superlink: str,
    *,
    roots: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
) -> None:
    """Look at the way to the SuperLink; nothing of the site's data is sent.

    Parameters
    ----------
    table : Findings
        Gets a row for each step; after one that fails there is none.
    superlink : str
        HOST:PORT; "" if there is nothing to look at.
    roots, key : path, optional
        ``--root-certificates`` and ``--auth-supernode-private-key``.
    insecure : bool
        Without TLS.
    """
    if not superlink:
        table.skip("SuperLink", "--superlink HOST:PORT --root-certificates ca.crt")
        return
    with table.looking("SuperLink", "check address, line and firewall"):
        address = _address(superlink)
        _reach(table, address, ", without TLS" if insecure else "")
    if table.fails("SuperLink"):
        return
    context, accepted = None, insecure
    if not insecure:
        cure = "check the port; ask the coordinator what stands before the SuperLink"
        with table.looking("certificate", cure):
            context = _context(roots)
            accepted = _look_at_certificate(table, address, context)
    if not accepted:
        return  # nothing else passes
    with table.looking("clock", "check the port"):
        _look_at_clock(table, address, context)
    if key is None:
        table.skip("key", "--auth-supernode-private-key FILE")
        return
    with table.looking("key", "start a SuperNode with this key and read its log"):
        trusted = None if roots is None else str(roots)
        if roots is None and not insecure:
            trusted = ssl.get_default_verify_paths().cafile
        answer = sign_on(superlink, _read_key(key), insecure=insecure, roots=trusted)
        _tell_of_key(table, key, answer)


def _address(superlink: str) -> tuple[str, int]:
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f"--superlink must be HOST:PORT, got {superlink!r}; e.g."
            " fedgraph.example.org:9443"
        )
    return host.strip("[]"), int(port)


def _reach(table: Findings, address: tuple[str, int], how: str) -> None:
    host, port = address
    begin = time.monotonic()
    try:
        with socket.create_connection(address, _PATIENCE_S):
            rtt_s = time.monotonic() - begin
    except OSError as error:
        cure = "check the address, that the SuperLink runs, and the firewall on the way"
        table.add("SuperLink", f"{host}:{port} cannot be reached: {error}", cure)
        return
    table.add("SuperLink", f"{host}:{port} answers in {1000 * rtt_s:.0f} ms{how}")


def _context(authority: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"--root-certificates {authority} cannot be read: {error};"
            " give the coordinator's ca.crt (PEM)"
        ) from error


def _look_at_certificate(
    table: Findings, address: tuple[str, int], context: ssl.SSLContext
) -> bool:
    """Whether the certificate is accepted; it may end soon."""
    host, port = address
    what = "certificate"
    try:
        with (
            socket.create_connection(address, _PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            shown, version = wrapped.getpeercert(), wrapped.version()
    except ssl.SSLCertVerificationError as error:
        default = "use the ca.crt that signed the certificate of this SuperLink"
        cure = _CURES.get(error.verify_code, default)
        table.add(what, f"not accepted: {error.verify_message}", cure)
        return False
    except ssl.SSLError as error:
        cure = "check the port; or the SuperLink was started with --insecure"
        table.add(what, f"{host}:{port} does not speak TLS: {error.reason}", cure)
        return False
    ends = datetime.fromtimestamp(
        ssl.cert_time_to_seconds(str((shown or {})["notAfter"])), UTC
    )
    found = f"{version}, names {host}, valid until {ends:%Y-%m-%d}"
    is_soon = (ends - datetime.now(UTC)).days < _SOON_DAYS
    cure = "ask the coordinator for a new server certificate before then"
    table.add(what, found, cure if is_soon else "")
    return True


def _look_at_clock(
    table: Findings, address: tuple[str, int], context: ssl.SSLContext | None
) -> None:
    """Compare this clock with the date that the SuperLink writes in its answers."""
    host, port = address
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    url = f"{'https' if context else 'http'}://{place}/health"
    begin = time.time()
    answer = httpx.get(
        url, verify=context or True, timeout=_PATIENCE_S, trust_env=False
    )
    end, date = time.time(), answer.headers.get("date")
    if not date:
        cure = "compare the clock by hand: timedatectl"
        table.add("clock", "the SuperLink tells no date", cure, UNKNOWN)
        return
    there = parsedate_to_datetime(date).timestamp() + 0.5  # seconds are cut off
    skew = (begin + end) / 2 - there
    is_off = abs(skew) > _SKEW_S + (end - begin) / 2
    cure = "synchronise it: timedatectl set-ntp true, or chrony" if is_off else ""
    table.add("clock", f"{skew:+.1f} s from that of the SuperLink", cure)


def _tell_of_key(table: Findings, path: Path, answer: httpx.Response | None) -> None:
    """Say whether the site's key was admitted; ``answer`` is a refusal."""
    if answer is None:
        table.add("key", f"{path.name} is admitted")
        return
    code = answer.status_code
    if "json" in answer.headers.get("content-type", ""):  # else a proxy refuses it
        table.add(
            "key",
            f"{path.name} is refused (HTTP {code}): {answer.text[:200]}",
            f"send {path.name}.pub to the coordinator, who admits it: flwr supernode"
            " register; if a SuperNode runs with this key now, all is well, or stop"
            " it and check again",
        )
        return
    found = f"no SuperLink has seen {path.name}: something before it answers HTTP"
    cure = "check the port: sites have the coordinator's 9443"
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        cure = "ask the coordinator whether the SuperLink runs; " + cure
    table.add("key", f"{found} {code}", cure, UNKNOWN)


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private half of an ECDSA key."""
    make_one = "make one: ssh-keygen -t ecdsa -b 384 -N '' -f site0"
    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except PermissionError as error:
        raise ConfigError(
            f"{path} cannot be read by this user; type this command as the user of the"
            " SuperNode: runuser -u fedgraph -- ..."
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read as a private key without password: {error}; give"
            f" the half without .pub, or {make_one}"
        ) from error
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} is no ECDSA key; {make_one}")
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path} can be read by others than its owner; chmod 600 {path}"
        )
    return found
