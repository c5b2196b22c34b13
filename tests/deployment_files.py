"""The files of ``examples/deployment``, with what a reader changes in them changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "deployment"


def changed(name: str, changes: Mapping[str, str]) -> str:
    """Text of a file after each change, of which each must change something."""
    text = (EXAMPLES / name).read_text()
    for old, new in changes.items():
        assert old in text, f"{name} has no {old!r}"
        text = text.replace(old, new)
    return text


def variables(name: str) -> dict[str, str]:
    """Variables of a file of settings, as a shell and systemd read it."""
    text = (EXAMPLES / name).read_text()
    return dict(entry.split("=", 1) for entry in shlex.split(text, comments=True))


def start_command(unit: str, values: Mapping[str, str]) -> list[str]:
    """Command that a systemd unit starts, with these variables."""
    text = (EXAMPLES / unit).read_text().replace("\\\n", " ")
    (line,) = [x for x in text.splitlines() if x.startswith("ExecStart=")]
    words = line.removeprefix("ExecStart=").split()
    for key, value in values.items():  # a whole word stays one, as in systemd
        words = [word.replace(f"${{{key}}}", value) for word in words]
    assert not [word for word in words if "$" in word], words
    return words


def superlink_command(folder: Path, certificates: Path, address: str) -> list[str]:
    """Command of the SuperLink's unit, from this environment and at this address."""
    values = {"FLWR_HOME": str(folder), "CERTIFICATES": str(certificates)}
    assert values.keys() <= variables("superlink.env").keys()
    words = start_command("fedgraph-superlink.service", values)
    words[0] = Path(words[0]).name
    words[words.index("--port") + 1] = address.split(":")[1]
    return words
