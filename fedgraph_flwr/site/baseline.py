"""Train alone on this site's data, and after a run read whether joining it paid.

Before a run: baseline FOLDER --run-config '...' --out ALONE trains by the protocol of
the run, without the others and without noise, and keeps the model and its score.

After it: baseline FOLDER --out ALONE --against MODEL compares with the model that this
site keeps of the run, <state-dir>/<experiment>/client-<id>/model, on the test items of
this site. Nobody else is told.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config import RunSettings
from ..errors import ConfigError
from ..node_config import PLUGINS
from ..plugins import named_in
from ..registry import METHODS
from ..resolve import defaults, resolve
from ..tasks import GRAPH_EMBEDDING
from ..trained import load_model
from ..trained.folder import PLACES, read_about
from ..trained.model import check_plugin
from .check_data import read
from .gain import LEVEL, Gain, compare, rare_items
from .trial import add_run_config, keep, read_run_config, run_one

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="this site's data")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="ALONE",
        help="folder of the model trained alone; with --against it may exist",
    )  # fmt: skip
    add_run_config(parser)
    parser.add_argument(
        "--against", type=Path, metavar="MODEL",
        help="model folder of the run, to compare with",
    )  # fmt: skip
    parser.add_argument(
        "--model", default="", metavar="NAME", help="which of several models of MODEL"
    )
    parser.add_argument(
        "--client", type=int, metavar="ID",
        help="id of this site's client in the run (default: that of MODEL, else 0)",
    )  # fmt: skip
    parser.add_argument("--cache-dir", default="", help="folder for converted data")


def run(args: argparse.Namespace) -> int:
    """Train alone, or compare, or both."""
    config = _config(args)
    client = _client(args)
    if args.out.exists() and not args.against:
        raise ConfigError(
            f"--out {args.out} is there already; choose another folder, or add"
            " --against MODEL to compare with what is in it"
        )
    if not args.out.exists():
        _check_place(args.out)
        _train(config, client, args)
    if not args.against:
        return 0
    _check_protocol(config, args.out)
    seed = int(str(config["seed"]))
    predicted = [
        load_model(path, name, cache_dir=args.cache_dir).predict_test(
            args.folder, client=client
        )
        for path, name in ((args.against, args.model), (args.out, ""))
    ]
    _tell(compare(*predicted, seed=seed), as_json=args.json)
    errors, errors_alone = (p.by_target() for p in predicted)
    for target, error in errors.items() if not args.json else ():
        print(f"{target}: alone {errors_alone[target]:.4f}, federated {error:.4f}")
    return 0


def _check_place(out: Path) -> None:
    """Refuse a folder that this user cannot make, before and not after training."""
    place = next(path for path in out.absolute().parents if path.exists())
    if not os.access(place, os.W_OK):
        raise ConfigError(
            f"--out {out} cannot be made, for this user may not write to {place};"
            " choose a folder that is not there yet, in one where it may"
        )


def _config(args: argparse.Namespace) -> dict[str, Any]:
    """Give the resolved config of the run that is joined or not."""
    if args.against:
        if args.run_config:
            raise ConfigError("give --run-config or --against: MODEL has its config")
        config = dict(read_about(args.against).config)
        check_plugin("dataset", str(config["dataset"]))
    elif args.run_config:
        config = read_run_config(args.run_config).to_config()
    else:
        raise ConfigError("give --run-config before a run, or --against after it")
    if config["task"] == GRAPH_EMBEDDING.key:
        raise ConfigError(
            f"method {config['method']!r} embeds graphs and predicts nothing, so that"
            " there is no score to compare; use a method that classifies"
        )
    return config


def _client(args: argparse.Namespace) -> int:
    if args.client is not None or not args.against:
        return args.client or 0
    about = read_about(args.against)
    owners = sorted({c for ids in about.models.values() for c in ids})
    if len(owners) != 1:
        raise ConfigError(
            f"{args.against} has models of clients {owners}; say which is this site's"
            " by --client ID"
        )
    return owners[0]


def _train(config: dict[str, Any], client: int, args: argparse.Namespace) -> None:
    shared = {k: v for k, v in config.items() if k in RunSettings.config_fields()}
    of_task = METHODS["local"]
    keys = {k for task in of_task.clients for k in task.settings.config_fields()}
    alone = {**shared, **{k: v for k, v in config.items() if k in keys}}
    alone |= {"method": "local", "dry-run": False}
    resolved = resolve({**defaults(), **alone})
    read(resolved, args.folder, client, args.cache_dir)  # says what is wrong in full
    own = {"cache-dir": args.cache_dir, PLUGINS: ",".join(named_in(alone).values())}
    with run_one(alone, args.folder, client, own) as trial:
        keep(trial.model, args.out)
    about, model = read_about(args.out), load_model(args.out, cache_dir=args.cache_dir)
    found = model.predict_test(args.folder, client=client)
    rare = rare_items(found)
    if not args.json:
        scores = ", ".join(f"{k} {v:.4f}" for k, v in about.scores.items())
        scores += f" on {len(found.names)} test items ({rare})" if rare else ""
        print(f"trained alone for {about.rounds} rounds: {scores}; kept in {args.out}")
    elif not args.against:
        print(
            json.dumps({"rounds": about.rounds, "scores": about.scores, "rare": rare})
        )


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
        told = {**asdict(gain), "gain": gain.value, "verdict": gain.verdict}
        print(json.dumps({**told, "level": LEVEL}))
        return
    rare = f" ({gain.rare})" if gain.rare else ""
    beside = "\n(a class is rare; accuracy: alone {1:.4f}, federated {0:.4f})"
    beside = beside.format(*gain.accuracy) if gain.accuracy else ""
    interval = f"no interval: {gain.how}"
    if gain.low is not None:
        interval = (
            f"{LEVEL:.0%} interval {gain.low:+.4f} to {gain.high:+.4f} ({gain.how})"
        )
    print(
        f"{gain.metric} on {gain.num_items} test items of this site{rare}: alone"
        f" {gain.alone:.4f}, federated {gain.federated:.4f}{beside}\n"
        f"gain {gain.value:+.4f}, {interval}\n"
        f"verdict: {gain.verdict}\n"
        "The interval is for new items like these, and for these two models; another"
        " split or another seed of training is not in it."
    )
