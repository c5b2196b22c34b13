"""What the wheel and the bundle carry."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from fedgraph_flwr.results.provenance import project_root

ROOT = project_root()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _build(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files, as a fresh clone has them."""
    target = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())
    return target


def test_the_wheel_carries_dependencies_and_no_package(
    copy: Path, tmp_path: Path
) -> None:
    _build(
        [
            *(sys.executable, "-m", "pip", "wheel", "--no-deps"),
            *("--no-build-isolation", "-w", str(tmp_path), "."),
        ],
        copy,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(n for n in names if n.endswith("METADATA")))
    assert all(n.startswith("fedgraph_flwr-0.1.0.dist-info/") for n in names)
    wanted = tomllib.loads((copy / "pyproject.toml").read_text())["project"]
    for requirement in wanted["dependencies"]:
        package = requirement.split("[")[0].split(">")[0]
        assert f"Requires-Dist: {package}".encode() in metadata


def test_the_bundle_carries_the_code_and_no_results(copy: Path) -> None:
    (copy / "results" / "some-run").mkdir(parents=True)
    (copy / "results" / "some-run" / "summary.json").write_text("{}")
    _build([str(Path(sys.executable).parent / "flwr"), "build"], copy)
    (bundle,) = copy.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
    packages = ("fedgraph_flwr", "strategies", "clients", "datasets")
    needed = {
        str(p.relative_to(ROOT)) for n in packages for p in (ROOT / n).rglob("*.py")
    }
    assert {"pyproject.toml", "fedgraph_flwr/server_app.py", *needed} <= names
    assert len(needed) > 100
    assert not [n for n in names if n.startswith("results/")]
    assert bundle.stat().st_size < 10 * 2**20
