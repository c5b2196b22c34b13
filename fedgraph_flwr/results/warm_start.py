"""A new run that begins from the model of a former one (run-config key init-from)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common.logger import log

from ..errors import ConfigError, DataError
from ..resolve import Resolved
from ..trained.folder import read_about, read_weights
from ..wire import NamedArrays
from .provenance import hash_weights
from .reader import blaming

_SUFFIX = ".safetensors"
# Keys that decide who trains and tests on what, in one data set.
_SPLIT = ("split-seed", "partition", "num-clients", "held-out", "held-out-clients")


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Tensors to begin from, and the run that they come from.

    Parameters
    ----------
    path : path
    arrays : dict of str to array
    lineage : list of mapping
        The former run and model, and what that began from, newest first.
    columns : str
        What the former run's features are, in words.
    """

    path: Path
    arrays: NamedArrays
    lineage: list[Mapping[str, Any]]
    columns: str = ""

    def warn_of_other_columns(self, now: str) -> None:
        """Warn if the model was trained on other features than clients have now."""
        if now and now != self.columns:
            log(
                WARNING,
                "init-from = %r was trained on other features (%s) than this run has"
                " (%s): what it learned of a column may be of no use here",
                str(self.path),
                self.columns or "as its data set has them",
                now,
            )

    def start(self, fresh: NamedArrays) -> NamedArrays:
        """Give the common start of a run: tensors of the former model.

        Parameters
        ----------
        fresh : dict of str to array
            What the run would begin from otherwise.

        Raises
        ------
        ConfigError
            A tensor that clients share is missing there, has another shape, or is not
        finite in this run's type.
        """
        odd = [
            f"{name}: {self._shape(name)} there, {array.shape} here"
            for name, array in fresh.items()
            if self._shape(name) != array.shape
        ]
        if odd:
            raise ConfigError(
                f"init-from = {str(self.path)!r} does not fit this run:"
                f" {'; '.join(odd[:5])}{' and more' * (len(odd) > 5)}; set hidden-dim,"
                " num-layers and shared-group as that run had them, and data with the"
                " same features and classes, or leave init-from out"
            )
        with np.errstate(over="ignore", invalid="ignore"):  # named right below
            found = {n: self.arrays[n].astype(a.dtype) for n, a in fresh.items()}
        if bad := [
            name for name, array in found.items() if not np.isfinite(array).all()
        ]:
            raise ConfigError(
                f"init-from = {str(self.path)!r} has NaN or infinity in"
                f" {', '.join(bad[:5])}; nobody can train from that model: name another"
            )
        return found

    def _shape(self, name: str) -> tuple[int, ...] | None:
        return self.arrays[name].shape if name in self.arrays else None


def read_start(resolved: Resolved) -> WarmStart | None:
    """Read what ``init-from`` names; None without it.

    It may name a results folder with one model, a model folder with one model, or the
    file of one model.

    Raises
    ------
    ConfigError
        The method makes its start itself, or the path leads to several models or none.
    DataError
        The model folder is damaged.
    """
    given = resolved.settings.init_from
    if not given:
        return None
    if not resolved.method.strategy.TAKES_START:
        raise ConfigError(
            f"method {resolved.settings.method!r} cannot begin from another model: its"
            " clients make the common start themselves, and the server hands out none;"
            " leave init-from out, or choose another method"
        )
    path, name = Path(given), ""
    with blaming(path):
        if path.suffix == _SUFFIX:
            path, name = path.parent, path.stem
        elif (path / "models").is_dir():
            path /= "models"
        try:
            about = read_about(path)
            name, arrays = read_weights(path, about, name)
        except DataError as error:
            names = sorted(p.name for p in path.glob(f"*{_SUFFIX}")) or ["none"]
            raise ConfigError(
                f"init-from = {given!r} does not lead to one model ({error}); give a"
                " results folder of a run with one model, or the file of one; files"
                f" there: {', '.join(names)}"
            ) from error
    _warn_of_other_split(given, about.config, resolved.to_config())
    former = {
        "experiment": about.experiment,
        "model": name,
        "rounds": about.rounds,
        "method": about.config["method"],
        "dataset": about.config["dataset"],
        "seed": about.config["seed"],
        "sha256": hash_weights({name: arrays}, {}),
    }
    return WarmStart(
        path=path,
        arrays=arrays,
        lineage=[former, *about.lineage],
        columns=about.columns,
    )


def _warn_of_other_split(
    given: str, before: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    changed = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in _SPLIT
        if before.get(key) != now.get(key)
    ]
    if changed and before["dataset"] == now["dataset"]:
        log(
            WARNING,
            "init-from = %r was trained on another split of %s (%s): it may have"
            " learned from what tests here; give this run the split of that one",
            given,
            now["dataset"],
            ", ".join(changed),
        )
