"""The machine of a site: versions, device, memory, disk, folder of private state."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import tempfile
import tomllib
from pathlib import Path

import torch

from ..core.files import project_root
from ..core.process import choose_device
from .findings import OK, PROBLEM, Finding

_GIB = 2**30
_LEAST_MEMORY, _LEAST_DISK = 2 * _GIB, 2 * _GIB  # torch alone takes half a GiB
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^+;\s]+)")


def versions() -> list[Finding]:
    """Compare the packages that a site runs with the pins of ``constraints.txt``.

    A folder from Flower Hub has no pins, as the Hub takes no such file.
    """
    root = project_root()
    pinned = root / "constraints.txt"
    pins: dict[str, str] = {}
    if pinned.exists():
        pins = dict(_PIN.findall(pinned.read_text(encoding="utf-8")))
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [re.split(r"[\[<>=~! ]", d)[0] for d in project["project"]["dependencies"]]
    have, odd = {}, []
    for name in wanted:
        try:
            have[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            odd.append(f"{name} missing")
    odd += [
        f"{n} {v}, pinned {pins[n]}" for n, v in have.items() if v != pins.get(n, v)
    ]
    if odd:
        how = "pip install -c constraints.txt ." if pins else "pip install ."
        cure = f"{how}, in the environment of the SuperNode"
        return [
            Finding(what="versions", state=PROBLEM, found="; ".join(odd), cure=cure)
        ]
    as_pinned = "as pinned" if pins else "here; this folder has no constraints.txt"
    found = f"{len(wanted)} packages {as_pinned}, flwr {have['flwr']}"
    return [Finding(what="versions", state=OK, found=found)]


def device(name: str) -> list[Finding]:
    """Say where clients would train, and how much memory is free there."""
    chosen = choose_device(name)
    free = _free_memory()
    found = f"{chosen}, {free / _GIB:.1f} GiB of memory free"
    if chosen.type == "cuda":
        on_gpu, total = torch.cuda.mem_get_info(chosen)
        found += f"; {torch.cuda.get_device_name(chosen)}, {on_gpu / _GIB:.1f} of"
        found += f" {total / _GIB:.1f} GiB free"
    if free < _LEAST_MEMORY:
        cure = f"free memory: {_LEAST_MEMORY / _GIB:.0f} GiB is the least to start with"
        return [Finding(what="device", state=PROBLEM, found=found, cure=cure)]
    return [Finding(what="device", state=OK, found=found)]


def _free_memory() -> int:
    """Bytes that processes can still have (Linux)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def state_folder(folder: Path) -> list[Finding]:
    """Whether private state can be written, only its owner reads it, and has room."""
    what, place = "state folder", folder
    if not folder.is_absolute():
        cure = "give an absolute path: a SuperNode starts anywhere"
        found = f"{folder} is a relative path"
        return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        found, cure = f"{place} is no folder", "choose another state-dir"
        return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    own = f"as the user of the SuperNode ({_user()})"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        user, group = _user().split(":")
        cure = (
            f"as root: install -d -m 700 -o {user} -g {group} {folder}; or choose"
            " another state-dir"
        )
        found = f"{place} cannot be written {own}: {error.strerror}"
        return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    if folder.exists():
        findings = _owned(what, folder, "can be written, by its owner alone")
    else:
        cure = f"mkdir -m 700 -p {folder}, {own}"
        found = f"{folder} is not there yet"
        findings = [Finding(what=what, state=PROBLEM, found=found, cure=cure)]
    free = shutil.disk_usage(place).free
    state = OK if free >= _LEAST_DISK else PROBLEM
    found = f"{free / _GIB:.1f} GiB free on the disk of {folder}"
    cure = f"make room: {_LEAST_DISK / _GIB:.0f} GiB is the least"
    return [*findings, Finding(what="disk", state=state, found=found, cure=cure)]


def cache_folder(folder: Path) -> list[Finding]:
    """Whether only its owner reads the site's graphs in the cache, if it is there."""
    if not folder.exists():
        return []
    return _owned("cache folder", folder, "can be read by its owner alone")


def _owned(what: str, folder: Path, good: str) -> list[Finding]:
    mode, owner = folder.stat(), os.getuid()
    if not mode.st_mode & 0o077 and mode.st_uid == owner:
        return [Finding(what=what, state=OK, found=f"{folder} {good}")]
    cure = f"chown {_user()} {folder} && chmod 700 {folder}"
    found = f"{folder} has mode {mode.st_mode & 0o777:o}: others can read it"
    if mode.st_uid != owner:
        found = f"{folder} belongs to user {mode.st_uid}, this is {owner}"
    return [Finding(what=what, state=PROBLEM, found=found, cure=cure)]


def _user() -> str:
    return f"{os.getuid()}:{os.getgid()}"
