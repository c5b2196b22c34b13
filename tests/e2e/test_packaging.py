"""What the wheel, the bundle and the published set carry; that the last one runs."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import free_ports, kill
from flwr.cli.utils import (
    collect_files,
    filter_paths_for_publish,
    validate_project_name,
)
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES
from publish import NAME, publish

from fedgraph_flwr.core.files import project_root
from fedgraph_flwr.results.reader import load_summary
from simulations import flower
from simulations.inline import run_inline

ROOT = project_root()
PACKAGES = ("clients", "datasets", "examples", "fedgraph_flwr", "plugins", "strategies")
_BIN = Path(sys.executable).parent
_STARTS = 5  # Flower gives its SuperLink 15 s, too few on a busy machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern"),  # Flower's
]


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


def test_the_bundle_carries_what_apps_run_and_nothing_else(copy: Path) -> None:
    _build([str(_BIN / "flwr"), "build"], copy)
    (bundle,) = copy.glob("*.fab")
    with zipfile.ZipFile(bundle) as archive:
        names = set(archive.namelist())
        config = tomllib.loads(archive.read("pyproject.toml").decode())
    needed = {
        str(p.relative_to(copy))
        for package in PACKAGES
        for p in (copy / package).rglob("*.py")
        if not p.is_relative_to(copy / "fedgraph_flwr" / "site")
    }
    assert names == {"pyproject.toml", "LICENSE", ".info/CONTENT", *needed}
    assert len(needed) > 100
    assert bundle.stat().st_size < 2 * 2**20
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1


@pytest.fixture(scope="module")
def published(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published set, made from a fresh clone."""
    target = tmp_path_factory.mktemp("hub") / NAME
    publish(copy, target)
    return target


def test_plug_ins_of_your_own_and_what_lies_beside_them_are_not_published(
    tmp_path: Path,
) -> None:
    own = ("fgx.py", "patients.json", ".fgx.json", "fgx/__init__.py")
    for name in ("plugins/__init__.py", "docs/hub.md", *(f"plugins/{n}" for n in own)):
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    files = publish(tmp_path / "project", tmp_path / NAME)
    assert files == ["README.md", "plugins/__init__.py"]


def test_flower_publishes_every_file_of_the_set(published: Path) -> None:
    files = collect_files(published)
    assert filter_paths_for_publish(files).keys() == files.keys()
    sizes = [path.stat().st_size for path in files.values()]
    assert 100 < len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    for path in files.values():
        path.read_text(encoding="utf-8")
    config = tomllib.loads((published / "pyproject.toml").read_text())
    assert config["project"]["name"] == published.name
    validate_project_name(published.name, "folder")
    assert 0 < len(config["project"]["description"]) <= 200


def test_links_of_the_set_lead_somewhere_and_pictures_are_on_the_web(
    published: Path,
) -> None:
    for page in published.rglob("*.md"):
        text = page.read_text()
        for picture, address in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text):
            if re.match("https?://", address):
                continue
            assert not picture, (page, address)
            path = address.partition("#")[0]
            assert not path or (page.parent / path).exists(), (page, address)
    assert "make " not in (published / "README.md").read_text()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment with the dependencies, and without this project on any path.

    A virtual environment whose one ``.pth`` file names the folder of packages: what
    ``.pth`` files there name in turn, such as a checkout, Python leaves out.
    """
    root = tmp_path_factory.mktemp("clean")
    venv = root / "venv"
    _build([sys.executable, "-m", "venv", "--without-pip", str(venv)], root)
    python = venv / "bin" / "python"
    (folder,) = venv.glob("lib/python*/site-packages")
    (folder / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    for script in _BIN.iterdir():
        lines = (
            script.read_bytes().splitlines(keepends=True) if script.is_file() else []
        )
        if lines and lines[0].startswith(b"#!") and b"python" in lines[0]:
            target = venv / "bin" / script.name
            if not target.exists():
                target.write_bytes(b"".join([f"#!{python}\n".encode(), *lines[1:]]))
                target.chmod(0o755)
    port = free_ports(2)
    environment = {
        "PATH": f"{venv / 'bin'}:/usr/bin:/bin",
        "HOME": str(root),
        "FLWR_HOME": str(root / "flower"),
        "FLWR_LOCAL_CONTROL_API_PORT": str(port),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port + 1),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    yield environment
    kill(flower.pids(root / "flower"))


def test_the_published_set_runs_where_this_project_is_not(
    published: Path, clean: dict[str, str], tmp_path: Path
) -> None:
    for module in ("fedgraph_flwr", "clients", "strategies"):
        code = f"import importlib.util as u; print(u.find_spec({module!r}))"
        found = _run([f"{_venv(clean)}/python", "-c", code], clean, tmp_path)
        assert found.strip() == "None"
    # The README's own command, shortened.
    short = ["--run-config", "num-server-rounds=2"]
    out = _run(["flwr", "run", ".", "--stream", *short], clean, published)
    (folder,) = (published / "results").glob("*")
    summary = load_summary(folder)
    assert summary["status"] == "completed", out
    assert (summary["method"], summary["num_clients"]) == ("gcfl+", 10)
    assert summary["rounds"] == 2
    inline = run_inline(
        {
            "num-server-rounds": 2,
            "results-dir": str(tmp_path / "results"),
            "state-dir": str(tmp_path / "state"),
        }
    )
    ours = load_summary(inline)
    assert summary["weights_sha256"] == ours["weights_sha256"]


def _venv(environment: dict[str, str]) -> str:
    return environment["PATH"].split(":")[0]


def _run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    for _ in range(_STARTS):
        done = subprocess.run(
            [f"{_venv(environment)}/{Path(command[0]).name}", *command[1:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if "Failed to start local SuperLink" not in done.stdout + done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
