"""A run of this site's own clients alone, in this process: nothing leaves the site."""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simulations.inline import run_inline

from ..errors import ConfigError
from ..files import whole_folder
from ..node_config import check_plugins
from ..resolve import Resolved, defaults, resolve
from ..results.model_folder import FOLDER
from ..rules import Value, shown
from ..toml_files import read_toml
from ..trained.folder import PLACES

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
