"""The way to a SuperLink: every refusal is told from the others."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import ssl
import threading
from contextlib import contextmanager
from email.utils import format_datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from fedgraph_flwr.site.check_link import check_link
from fedgraph_flwr.site.findings import OK, PROBLEM, SKIPPED, UNKNOWN, Findings

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
USES = (
    *("digital_signature", "content_commitment", "key_encipherment"),
    *("data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"),
    *("encipher_only", "decipher_only"),
)


def make_certificate(folder, name, *, days=90, ip="127.0.0.1", signer=None):
    """Write a certificate and its key; returns both, to sign others with."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, by = signer or (subject, key)
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), 100 + days)
    builder = builder.not_valid_before(NOW - 400 * DAY).not_valid_after(
        NOW + days * DAY
    )
    if signer is None:
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
        uses = dict.fromkeys(USES, False) | {"key_cert_sign": True}
        builder = builder.add_extension(x509.KeyUsage(**uses), critical=True)
    else:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ip))])
        builder = builder.add_extension(names, critical=False)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    its = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key())
    for identifier in (own, its):  # without them strict checks refuse it
        builder = builder.add_extension(identifier, critical=False)
    made = builder.sign(by, hashes.SHA256())
    pem = serialization.Encoding.PEM
    (folder / f"{name}.crt").write_bytes(made.public_bytes(pem))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, *plain))
    return subject, key


class Handler(http.server.BaseHTTPRequestHandler):
    ahead_s = 0.0
    tells_date = True
    refusal = (501, "text/html", "<html>")

    def do_POST(self):
        code, kind, text = self.refusal
        self.send_response_only(code)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.send_response_only(404)
        if self.tells_date:
            there = datetime.datetime.now(datetime.UTC)
            there += datetime.timedelta(seconds=self.ahead_s)
            self.send_header("Date", format_datetime(there, usegmt=True))
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def server(certificate=None, **attributes):
    handler = type("Own", (Handler,), attributes)
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{certificate}.crt", f"{certificate}.key")
        made.socket = context.wrap_socket(made.socket, server_side=True)
    made.handle_error = lambda *_: None
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{made.server_address[1]}"
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    ca = make_certificate(folder, "ca")
    make_certificate(folder, "other-ca")
    make_certificate(folder, "good", signer=ca)
    make_certificate(folder, "old", days=-1, signer=ca)
    make_certificate(folder, "soon", days=3, signer=ca)
    make_certificate(folder, "elsewhere", ip="10.0.0.1", signer=ca)
    return folder


def see(address, ca=None, *, key=None, insecure=False):
    table = Findings()
    check_link(table, address, roots=ca, key=key, insecure=insecure)
    return {row["what"]: row for row in table.rows}


def test_a_superlink_with_the_right_certificate_and_clock_is_fine(keys):
    with server(keys / "good") as address:
        found = see(address, keys / "ca.crt")
    assert [f["state"] for f in found.values()] == [OK, OK, OK, SKIPPED]
    assert "TLSv1.3, names 127.0.0.1, valid until" in found["certificate"]["found"]


@pytest.mark.parametrize(
    ("certificate", "ca", "match", "cure"),
    [
        ("good", "other-ca", "not accepted", "the ca.crt that signed"),
        ("old", "ca", "certificate has expired", "ask the coordinator for a new"),
        ("soon", "ca", "valid until", "new server certificate before then"),
        ("elsewhere", "ca", "IP address mismatch", "names this address in subjectAlt"),
        (None, "ca", "does not speak TLS", "--insecure"),
        ("good", "missing", "cannot be read", "give the coordinator's ca.crt"),
    ],
)
def test_a_wrong_certificate_is_a_problem_with_its_cure(
    keys, certificate, ca, match, cure
):
    place = None if certificate is None else keys / certificate
    with server(place) as address:
        rows = see(address, keys / f"{ca}.crt", key=keys / "no-key")
    found = rows["certificate"]
    assert found["state"] == PROBLEM
    assert match in found["found"]
    assert cure in found["cure"]
    behind = ["clock", "key"] if certificate == "soon" else []  # else not looked at
    assert list(rows) == ["SuperLink", "certificate", *behind]


@pytest.mark.parametrize(
    ("attributes", "state"),
    [
        ({}, OK),
        ({"ahead_s": 60.0}, PROBLEM),
        ({"ahead_s": -60.0}, PROBLEM),
        ({"tells_date": False}, UNKNOWN),
    ],
)
def test_a_clock_that_is_off_is_seen(attributes, state):
    with server(**attributes) as address:
        assert see(address, insecure=True)["clock"]["state"] == state


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("127.0.0.1:1", "cannot be reached"),
        ("no.such.host.invalid:9000", "cannot be reached"),
        ("127.0.0.1", "must be HOST:PORT"),
        ("127.0.0.1:port", "must be HOST:PORT"),
        ("127.0.0.1:99999", "must be HOST:PORT"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_problem(address, match):
    found = see(address, insecure=True)
    assert list(found) == ["SuperLink"]
    assert found["SuperLink"]["state"] == PROBLEM
    assert match in found["SuperLink"]["found"]


def write_key(path, key):
    form = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    path.chmod(0o600)
    return path


def test_keys_that_cannot_sign_are_refused_before_anything_is_sent(tmp_path):
    good = write_key(tmp_path / "good", ec.generate_private_key(ec.SECP384R1()))
    edwards = write_key(tmp_path / "ed", ed25519.Ed25519PrivateKey.generate())
    (tmp_path / "text").write_text("no key")
    with server() as address:
        for key, match in (
            (tmp_path / "missing", "cannot be read as a private key"),
            (tmp_path / "text", "cannot be read as a private key"),
            (edwards, "is no ECDSA key"),
            (tmp_path / "good.pub", "cannot be read as a private key"),
        ):
            found = see(address, key=key, insecure=True)["key"]
            assert found["state"] == PROBLEM
            assert match in found["found"]
        assert "the half without .pub, or make one" in found["cure"]
        good.chmod(0o644)
        assert (
            "can be read by others"
            in see(address, key=good, insecure=True)["key"]["found"]
        )


@pytest.mark.parametrize(
    ("refusal", "state", "cure"),
    [
        ((412, "application/json", '{"code":2004}'), PROBLEM, "supernode register"),
        ((400, "text/html", "<html>no certificate"), UNKNOWN, "check the port"),
        ((403, "text/html", "<html>"), UNKNOWN, "check the port"),
        ((502, "text/html", "<html>"), UNKNOWN, "whether the SuperLink runs"),
    ],
)
def test_a_proxys_refusal_is_none_of_the_key(tmp_path, refusal, state, cure):
    key = write_key(tmp_path / "site", ec.generate_private_key(ec.SECP384R1()))
    with server(refusal=refusal) as address:
        found = see(address, key=key, insecure=True)["key"]
    assert found["state"] == state
    assert cure in found["cure"]
    assert ("register" in found["cure"]) == (state == PROBLEM)
