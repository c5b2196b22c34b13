"""Downloads, from a server with TLS on loopback: what is refused, and what is kept."""

from __future__ import annotations

import gzip
import io
import shutil
import ssl
import subprocess
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from datasets.public.moleculenet import load_moleculenet
from datasets.public.node_graphs import load_node_graph
from datasets.public.tu import load_tu
from fedgraph_flwr.core.errors import DataError

CERTIFICATES = Path(__file__).parents[3] / "examples" / "deployment" / "certificates.sh"
URL = "torch_geometric.datasets.{}.url"
TU = {
    "A": "1, 2\n2, 1\n3, 4\n4, 3\n",
    "graph_indicator": "1\n1\n2\n2\n",
    "graph_labels": "0\n1\n",
}
CSV = b"iupac,smiles,expt,calc\na,CC,3.5,3\nb,C,-1,0\n"
TOX21 = ",".join(f"t{k}" for k in range(12)) + ",mol_id,smiles\n0,1,,0,,,,,,,,1,T1,CC\n"


MOVED = b"to a server without encryption"


def zipped(name: str, **files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for kind, text in files.items():
            archive.writestr(f"{name}/{name}_{kind}.txt", text)
    return content.getvalue()


def photo() -> bytes:
    content = io.BytesIO()
    shared = {"indices": [1, 0], "indptr": [0, 1, 2], "data": [1.0, 1], "shape": [2, 2]}
    parts = {f"{p}_{k}": v for p in ("adj", "attr") for k, v in shared.items()}
    np.savez(content, labels=[0, 1], **{k: np.asarray(v) for k, v in parts.items()})
    return content.getvalue()


# What is loaded, from which file of the server, with which bytes; none is pinned.
UNPINNED = {
    "tu": (lambda: len(load_tu("TINY")), "/TINY.zip", zipped("TINY", **TU)),
    "amazon": (
        lambda: load_node_graph("Photo", "raw").num_nodes,
        "/amazon_electronics_photo.npz",
        photo(),
    ),
    "csv": (lambda: len(load_moleculenet("FreeSolv")), "/SAMPL.csv", CSV),
    "gz": (
        lambda: len(load_moleculenet("Tox21")),
        "/tox21.csv.gz",
        gzip.compress(TOX21.encode(), mtime=0),
    ),
}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    command = ["sh", str(CERTIFICATES), "127.0.0.1", str(folder), "nobody"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture
def served(certificates, tmp_path, monkeypatch):
    """Files that a server gives at every publisher's address, by path."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = files.get(self.path)
            is_moved = content == MOVED
            self.send_response(404 if content is None else 302 if is_moved else 200)
            if is_moved:
                place = f"http://127.0.0.1:{plain.server_port}/OTHER.zip"
                self.send_header("Location", place)
            length = len(content or b"") + (9 if content and b"CUT" in content else 0)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    plain, server = (ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setattr(server, "handle_error", lambda *_: None)  # refused handshakes
    for each in (plain, server):
        threading.Thread(target=each.serve_forever, daemon=True).start()
    base = f"https://127.0.0.1:{server.server_port}"
    for name, tail in {
        "TUDataset": "",
        "Planetoid": "",
        "Amazon": "/",
        "HeterophilousGraphDataset": "",
        "MoleculeNet": "/{}",
    }.items():
        monkeypatch.setattr(URL.format(name), base + tail)
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    monkeypatch.setenv("FEDGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.crt"))
    yield files
    for each in (plain, server):
        each.shutdown()
        each.server_close()


@pytest.mark.parametrize("kind", UNPINNED)
def test_a_download_is_kept(served, tmp_path, kind):
    load, path, content = UNPINNED[kind]
    served[path] = content
    found = load()
    assert found > 0
    served.clear()  # what is there is not fetched again
    for entry in (tmp_path / "cache").iterdir():
        if entry.is_dir() and entry.name != "downloads":
            shutil.rmtree(entry)
    assert load() == found


def test_a_certificate_that_nobody_trusts_is_refused(served, monkeypatch):
    load, path, content = UNPINNED["tu"]
    served[path] = content
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DataError, match=r"CERTIFICATE_VERIFY_FAILED.*SSL_CERT_FILE"):
        load()


@pytest.mark.parametrize(
    ("load", "path", "content"),
    [
        (lambda: load_tu("MUTAG"), "/MUTAG.zip", zipped("MUTAG", **TU)),
        (lambda: load_node_graph("texas", "raw"), "/texas.npz", photo()),
        (lambda: load_moleculenet("Lipo"), "/Lipophilicity.csv", CSV),
    ],
)
def test_other_bytes_than_the_publishers_are_refused(
    served, tmp_path, load, path, content
):
    served[path] = content
    with pytest.raises(DataError, match=r"is not taken: .*cache.py.*set data-dir"):
        load()
    left = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert {p.suffix for p in left} == {".lock"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "HTTP Error 404"),
        (MOVED, "OTHER.zip is not encrypted"),
        (b"CUT", "cut off: 3 of 12 bytes"),
        (b"a page of a hotel", "not a zip file"),
        (zipped("OTHER", **TU), "no texts in a folder TINY"),
    ],
)
def test_what_is_no_archive_of_the_set_is_refused(served, tmp_path, content, problem):
    if content is not None:
        served["/TINY.zip"] = content
    served["/OTHER.zip"] = zipped("TINY", **TU)
    with pytest.raises(DataError, match=rf"cannot be downloaded from .*{problem}"):
        load_tu("TINY")
    left = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert {p.suffix for p in left} == {".lock"}
