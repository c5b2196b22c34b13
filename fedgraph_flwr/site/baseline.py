"""``fedgraph site baseline``: train alone, and read whether joining a run paid."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.special import stdtrit

import datasets
from simulations.inline import run_inline

from ..core.config import RunSettings
from ..core.errors import ConfigError, DataError
from ..core.files import whole_folder
from ..core.plugins import named_in
from ..core.rules import Value, shown
from ..core.tasks import GRAPH_EMBEDDING
from ..node.node_config import PLUGINS, check_plugins
from ..registry import METHODS
from ..resolve import Resolved, defaults, resolve
from ..results.model_files import FOLDER
from ..trained import load_model
from ..trained.model import SCALED, Predictions, check_plugin
from ..trained.model_folder import PLACES, read_about
from .findings import AsJson, CacheDir

LEVEL = 0.95
NUM_DRAWS = 2000
_FEWEST = 10  # items; fewer cannot be resampled in a way that means something


@dataclass(frozen=True, kw_only=True)
class Gain:
    """How much better a federated model is than one trained alone.

    Parameters
    ----------
    federated, alone : float
        Scores on the same items.
    low, high : float, optional
        Interval of the gain, which is > 0 where the federated model is better. None if
        no resample moves the gain, so that there is no interval.
    """

    metric: str
    federated: float
    alone: float
    low: float | None
    high: float | None
    num_items: int

    @property
    def value(self) -> float:
        """Gain, also of an error > 0 where the federated model is better."""
        sign = -1 if self.metric in ("mae", SCALED) else 1
        return sign * (self.federated - self.alone)

    @property
    def verdict(self) -> str:
        """Say "join", "do not join" or "cannot tell"."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return "cannot tell"
        return "join" if self.low > 0 else "do not join"


def compare(federated: Predictions, alone: Predictions, *, seed: int) -> Gain:
    """Compare two models on one site's test items, item by item.

    The score is that by which the federated run chose its rounds.

    Parameters
    ----------
    federated, alone : Predictions
        Of the same items, with labels.
    seed : int
        Of the resampling.

    Raises
    ------
    DataError
        The items or labels are not the same, or allow no score.
    """
    labels, other = federated.labels, alone.labels
    if labels is None or other is None or federated.names != alone.names:
        raise DataError("the two models were not measured on the same items")
    if not np.array_equal(labels, other, equal_nan=labels.dtype.kind == "f"):
        raise DataError("the two models were measured on items with other labels")
    metric, models = federated.decides, (federated, alone)
    scores = [
        federated.measure(metric, p.outputs, labels) if len(labels) else math.nan
        for p in models
    ]
    if any(map(math.isnan, scores)):
        raise DataError(
            "the test items of this site allow no score: none has a label, or all"
            " labels are of one class"
        )
    low, high = _resampled(federated, alone, labels, seed)
    is_flat = low == high
    return Gain(
        metric=metric,
        federated=scores[0],
        alone=scores[1],
        low=None if is_flat else low,
        high=None if is_flat else high,
        num_items=len(labels),
    )


def _resampled(
    federated: Predictions, alone: Predictions, labels: NDArray[Any], seed: int
) -> tuple[float, float]:
    """Interval of the gain over items drawn again, the same for both models.

    Percentiles are too narrow if a handful of items tell: 3 positive labels can all
    speak for one of two equal models. So the interval is at least that of Student's t,
    with as many values as items tell.
    """
    metric = federated.decides
    count = _num_telling(metric, labels)
    if len(labels) < _FEWEST or count < 2:
        raise DataError(
            f"this site has {len(labels)} test items, of which {count} tell of the gain"
            f" in {metric}; an interval needs at least {_FEWEST} items, and 2 that tell"
        )
    rng = np.random.default_rng(seed)
    sign = -1 if metric in ("mae", SCALED) else 1

    def gain(at: NDArray[np.int64]) -> float:
        ours, theirs = (
            federated.measure(metric, p.outputs[at], labels[at])
            for p in (federated, alone)
        )
        return sign * (ours - theirs)

    size = len(labels)
    drawn = np.array([gain(rng.integers(0, size, size)) for _ in range(NUM_DRAWS)])
    drawn = drawn[~np.isnan(drawn)]
    if not np.ptp(drawn):
        return float(drawn[0]), float(drawn[0])
    low, high = np.percentile(drawn, [100 * (1 - LEVEL) / 2, 100 * (1 + LEVEL) / 2])
    spread = float(drawn.std(ddof=1)) * math.sqrt(count / (count - 1))
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * spread
    seen = gain(np.arange(size))
    low, high = min(float(low), seen - half), max(float(high), seen + half)
    return (low, high) if sign < 0 else (max(low, -1.0), min(high, 1.0))


def _num_telling(metric: str, labels: NDArray[Any]) -> int:
    """Count items with a label; for ROC-AUC, with the rarer label of some task.

    For average precision, the items of the smallest class that some have.
    """
    if metric == "accuracy":
        return len(labels)
    if labels.ndim == 1:
        sizes = np.bincount(labels)
        return int(min(n for n in sizes if n))
    known = ~np.isnan(labels)
    if metric in ("mae", SCALED):
        return int(known.any(axis=1).sum())
    ones, zeros = (labels == 1).sum(axis=0), (labels == 0).sum(axis=0)
    is_rarer = (labels == np.where(ones <= zeros, 1, 0)) & (ones > 0) & (zeros > 0)
    return int(is_rarer.any(axis=1).sum())


# Shared settings in which training alone may differ from the run.
_OWN = {
    *PLACES,
    "method",
    "client-fraction",
    "held-out-clients",
    "evaluate-on",
    "dry-run",
    "device",
    "min-fit-replies",
    "round-timeout-s",
    "roll-call-timeout-s",
    "shared-group",
    "weighting",
}


RunConfig = Annotated[
    str,
    typer.Option(
        metavar="CONFIG",
        help="The run config of the run, as for flwr run: text or a TOML file.",
    ),
]


def baseline(
    folder: Annotated[Path, typer.Argument(readable=False, help="This site's data.")],
    *,
    out: Annotated[
        Path,
        typer.Option(
            metavar="ALONE",
            help="Folder of the model trained alone; with --against it may exist.",
        ),
    ],
    run_config: RunConfig = "",
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="MODEL",
            help="Model folder of the run, to compare with; of a cross-validation one"
            " of each fold, by --against several times.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Which of several models of MODEL.")
    ] = "",
    client: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            help="Id of this site's client in the run (else that of MODEL, else 0).",
        ),
    ] = None,
    cache_dir: CacheDir = "",
    as_json: AsJson = False,
) -> int:
    """Train alone on this site's data, and after a run read whether joining it paid.

    Before a run: baseline FOLDER --run-config '...' --out ALONE trains by the protocol
    of the run, without the others and without noise, and keeps the model and its score.

    After it: baseline FOLDER --out ALONE --against MODEL compares with the model that
    this site keeps of the run, <state-dir>/<experiment>/client-<id>/model, on the test
    items of this site. Nobody else is told.
    """
    models, configs = _configs(run_config, against or [])
    whose = _client(client, models)
    if out.exists() and not against:
        raise ConfigError(
            f"--out {out} is there already; choose another folder, or add"
            " --against MODEL to compare with what is in it"
        )
    places = [out if len(configs) == 1 else out / f"fold-{c['fold']}" for c in configs]
    of_folds = []
    for config, place in zip(configs, places, strict=True):
        if is_new := not place.exists():
            _check_place(place)
            _train(config, whose, folder, place, cache_dir)
        if against:
            _check_protocol(config, place)
        kept = load_model(place, cache_dir=cache_dir)
        of_folds.append(kept.predict_test(folder, client=whose))
        about, count = read_about(place), len(of_folds[-1].names)
        facts: dict[str, Any] = {"rounds": about.rounds, "scores": about.scores}
        facts |= {"fold": config["fold"]} if len(places) > 1 else {}
        if is_new and not as_json:
            scores = ", ".join(f"{k} {v:.4f}" for k, v in about.scores.items())
            print(
                f"trained alone for {about.rounds} rounds: {scores} on {count} test"
                f" items; kept in {place}"
            )
        elif not against:
            print(json.dumps({**facts, "items": count}))
    if not against:
        return 0
    alone = joined(of_folds)
    federated = joined(
        load_model(path, model, cache_dir=cache_dir).predict_test(folder, client=whose)
        for path in models
    )
    _tell(compare(federated, alone, seed=int(configs[0]["seed"])), as_json=as_json)
    errors, errors_alone = federated.by_target(), alone.by_target()
    for target, error in errors.items() if not as_json else ():
        print(f"{target}: alone {errors_alone[target]:.4f}, federated {error:.4f}")
    return 0


def joined(predictions: Iterable[Predictions]) -> Predictions:
    """Join predictions of the test items of all folds, each by its fold's model."""
    found = list(predictions)
    if len(found) == 1:
        return found[0]
    return replace(
        found[0],
        outputs=np.concatenate([p.outputs for p in found]),
        names=[name for p in found for name in p.names],
        labels=np.concatenate([p.labels for p in found if p.labels is not None]),
    )


def _check_place(out: Path) -> None:
    """Refuse a folder that this user cannot make, before and not after training."""
    place = next(path for path in out.absolute().parents if path.exists())
    if not os.access(place, os.W_OK):
        raise ConfigError(
            f"--out {out} cannot be made, for this user may not write to {place};"
            " choose a folder that is not there yet, in one where it may"
        )


def _configs(
    run_config: str, against: list[Path]
) -> tuple[list[Path], list[dict[str, Any]]]:
    """Models and resolved configs of the run that is joined or not, one per fold."""
    if against and run_config:
        raise ConfigError("give --run-config or --against: MODEL has its config")
    if against:
        of = {path: dict(read_about(path).config) for path in against}
        against = sorted(of, key=lambda path: int(of[path].get("fold", 0)))
        configs = [of[path] for path in against]
        check_plugin("dataset", str(configs[0]["dataset"]))
        _check_folds(configs)
    elif run_config:
        config = read_run_config(run_config).to_config()
        folds = int(config["folds"])
        configs = [{**config, "fold": k} for k in range(folds)]
    else:
        raise ConfigError("give --run-config before a run, or --against after it")
    if configs[0]["task"] == GRAPH_EMBEDDING.key:
        raise ConfigError(
            f"method {configs[0]['method']!r} embeds graphs and predicts nothing, so"
            " that there is no score to compare; use a method that classifies"
        )
    return against, configs


def _check_folds(configs: list[dict[str, Any]]) -> None:
    """Refuse models that are not those of one cross-validation, each fold once."""
    folds = int(configs[0].get("folds", 1))
    given = [int(config.get("fold", 0)) for config in configs]
    apart = {
        key
        for config in configs
        for key in RunSettings.config_fields()
        if key not in {*PLACES, "fold"} and config.get(key) != configs[0].get(key)
    }
    if given != list(range(folds)) or apart:
        raise ConfigError(
            f"--against must name one model of each of {folds} fold(s) of one run, got"
            f" folds {given}{', which differ in ' * bool(apart)}"
            f"{', '.join(sorted(apart))}; correct the folders"
        )


def _client(client: int | None, against: list[Path]) -> int:
    if client is not None or not against:
        return client or 0
    about = read_about(against[0])
    owners = sorted({c for ids in about.models.values() for c in ids})
    if len(owners) != 1:
        raise ConfigError(
            f"{against[0]} has models of clients {owners}; say which is this site's"
            " by --client ID"
        )
    return owners[0]


def _train(
    config: dict[str, Any], client: int, folder: Path, out: Path, cache_dir: str
) -> None:
    """Train the client of this site alone, and keep its model."""
    shared = {k: v for k, v in config.items() if k in RunSettings.config_fields()}
    of_task = METHODS["local"]
    keys = {k for task in of_task.clients for k in task.settings.config_fields()}
    alone = {**shared, **{k: v for k, v in config.items() if k in keys}}
    alone |= {"method": "local", "dry-run": False}
    resolved = resolve({**defaults(), **alone})
    settings = own_settings(resolved, folder, cache_dir)
    datasets.check_hosted(settings, [client])
    datasets.load_partition(settings, client)  # says what is wrong in full
    own = {"cache-dir": cache_dir, PLUGINS: ",".join(named_in(alone).values())}
    with run_one(alone, folder, client, own) as (_, kept):
        keep(kept, out)


def _check_protocol(config: dict[str, Any], out: Path) -> None:
    """Refuse to compare models that were trained by other settings."""
    alone = read_about(out).config
    if alone["method"] != "local":
        raise ConfigError(
            f"{out} holds a model of method {alone['method']!r}, not one trained alone;"
            " choose another --out"
        )
    odd = [
        f"{key} is {config.get(key)!r} in the run and {alone.get(key)!r} alone"
        for key in RunSettings.config_fields()
        if key not in _OWN and config.get(key) != alone.get(key)
    ]
    if odd:
        raise ConfigError(
            f"{out} was trained by another protocol: {'; '.join(odd[:5])}; train anew"
            " with another --out"
        )


def _tell(gain: Gain, *, as_json: bool) -> None:
    if as_json:
        facts = {**asdict(gain), "gain": gain.value, "verdict": gain.verdict}
        print(json.dumps({**facts, "level": LEVEL}))
        return
    interval = "no interval: no resample of these items moves the gain"
    if gain.low is not None:
        interval = (
            f"{LEVEL:.0%} interval {gain.low:+.4f} to {gain.high:+.4f} ({NUM_DRAWS}"
            " paired resamples of the items, at least Student's t)"
        )
    print(
        f"{gain.metric} on {gain.num_items} test items of this site: alone"
        f" {gain.alone:.4f}, federated {gain.federated:.4f}\n"
        f"gain {gain.value:+.4f}, {interval}\n"
        f"verdict: {gain.verdict}\n"
        "The interval is for new items like these, and for these two models; another"
        " split or another seed of training is not in it."
    )


# A run of this site's own clients alone, in this process ------------------------------

# What Flower's commands take of a text: keys and values. All else they pass over.
_PAIR = re.compile(r"(\S+?)=(\'[^\']*\'|\"[^\"]*\"|\S+)")


def parse_config(given: str, option: str) -> dict[str, Any]:
    """Read keys and values as Flower's commands do: a TOML file, or a text.

    Raises
    ------
    ConfigError
        Or a text has what Flower passes over, without a word.
    """
    is_file = given.endswith(".toml")
    text = "" if is_file else given
    if left := " ".join(_PAIR.sub(" ", text).replace(",", " ").split()):
        raise ConfigError(
            f"{option} has {shown(left)}, which Flower leaves out without a word; write"
            " key=value without spaces around =, pairs separated by spaces, texts in"
            " quotes without quotes inside; or give one TOML file"
        )
    try:
        if is_file:
            text = Path(given).expanduser().read_text(encoding="utf-8")
        else:
            text = "\n".join(f"{key} = {value}" for key, value in _PAIR.findall(text))
        return dict(_flat(tomllib.loads(text)))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{option} cannot be read: {error}; texts stand in double quotes"
        ) from error


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def read_run_config(
    given: str, node: Mapping[str, Any] = MappingProxyType({})
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


def own_settings(resolved: Resolved, folder: Path, cache_dir: str) -> RunSettings:
    """Return settings of a run that reads this folder, and leaves out bad rows."""
    place = str(folder.expanduser().absolute())
    settings = resolved.settings
    return replace(settings, data_dir=place, cache_dir=cache_dir, csv_bad_rows="skip")


@contextlib.contextmanager
def run_one(
    config: Mapping[str, Value], folder: Path, client: int, own: Mapping[str, str]
) -> Iterator[tuple[Path, Path]]:
    """Run one client as its SuperNode does, on the data of ``folder``.

    Gives the results folder and the model folder that the client keeps. Both go after
    use.

    Parameters
    ----------
    config : mapping
        Run config; folders in it are left out.
    own : mapping
        Further keys of the site's node-config.
    """
    logger = logging.getLogger("flwr")
    resolved = resolve({**defaults(), **config, **dict.fromkeys(PLACES, "")})
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
        before = logger.level
        logger.setLevel(logging.WARNING)  # the lines of a run are not a command's
        try:
            results = run_inline(run_config, node_configs=[node], only=[client])
        finally:
            logger.setLevel(before)
        kept = Path(scratch) / "state" / results.name / f"client-{client}" / FOLDER
        yield results, kept


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
