"""Predict new graphs, nodes or molecules with a trained model, as a CSV file.

MODEL is models/ of a results folder, a copy of it, or the model that this site keeps,
private layers included: <state-dir>/<experiment>/client-<id>/model. FOLDER has the form
of the run's own data, labels left out. Data that do not fit the model are refused.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError
from ..trained import load_model
from ..trained.predictions import Predictions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model folder")
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, nargs="?",
        help="the items to predict; with --test the data that the client was trained"
        " on",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the CSV file to write"
    )
    parser.add_argument(
        "--model", default="", metavar="NAME", dest="name",
        help="which of several models, e.g. global or cluster-1",
    )  # fmt: skip
    parser.add_argument(
        "--test", action="store_true",
        help="predict the test items of the run; the score printed is that of the run",
    )  # fmt: skip
    parser.add_argument(
        "--client", type=int, metavar="ID",
        help="with --test: whose test items, if several clients have the model",
    )  # fmt: skip
    parser.add_argument(
        "--threshold", type=float, metavar="P",
        help="predict the rarer of two classes, or yes, from this probability on"
        " (default: 0.5)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    parser.add_argument("--cache-dir", default="", help="folder for converted data")


def run(args: argparse.Namespace) -> int:
    """Write the predictions; 1 if some items cannot be predicted."""
    model = load_model(
        args.model, args.name, device=args.device, cache_dir=args.cache_dir
    )
    if args.test:
        found = model.predict_test(args.folder, client=args.client)
    elif args.folder is None:
        raise ConfigError("give the FOLDER of the items to predict, or --test")
    else:
        found = model.predict_folder(args.folder)
    if args.threshold is not None:
        found = replace(found, threshold=args.threshold)
    found.write(args.out)
    (_tell_json if args.json else _tell)(found, model.name, args.out)
    return 1 if found.unfit else 0


def _tell(found: Predictions, model: str, out: Path) -> None:
    print(f"{len(found.names)} items predicted by {model}: {out}")
    score = found.score()
    if score is not None:
        told = "none, labels are of one class" if math.isnan(score) else repr(score)
        print(f"test {found.metric} of {len(found.names)} items: {told}")
        for target, of_one in found.by_target().items():
            print(f"test {found.metric} of {target}: {of_one!r}")
    for words in _ranking(found):
        print(words)
    for name, why in found.unfit[:_SHOWN]:
        print(f"not predicted: {found.column} {name}: {why}")
    if len(found.unfit) > _SHOWN:
        print(f"not predicted: {len(found.unfit) - _SHOWN} more; see {out}")


def _ranking(found: Predictions) -> Iterator[str]:
    """Say how to find a rare class, where predictions alone do not show it."""
    if not found.is_of_classes or len(found.labels_of) < 2 or not found.names:
        return
    is_pair = len(found.labels_of) == 2
    if found.rarest and found.labels is not None and len(found.labels):
        score = found.average_precision()
        told = "none, labels are of one class" if math.isnan(score) else f"{score:.4f}"
        yield f"test average precision of {len(found.names)} items: {told}"
    sought = found.labels_of[found.sought]
    if found.threshold is not None:
        yes = found.predicted == found.sought
        words = f"{yes.sum()} item(s) with p({sought}) >= {found.threshold:g}"
        if found.labels is not None:
            is_it = found.labels == found.sought
            words += (
                f", among them {(yes & is_it).sum()} of the {is_it.sum()} labelled so"
            )
        yield words
        return
    is_one = (found.predicted == found.predicted[0]).all()
    if is_one:
        constant = found.labels_of[found.predicted[0]]
        yield f"all {len(found.names)} predictions are class {constant!r}"
    if found.rarest or (is_one and is_pair):
        words = ", or give --threshold" if is_pair else ""
        yield f"to find class {sought!r}, sort by p({sought}), largest first{words}"


def _tell_json(found: Predictions, model: str, out: Path) -> None:
    score = found.score()
    told = {
        "model": model,
        "out": str(out),
        "items": len(found.names),
        "metric": found.metric,
        "notes": [*_ranking(found)],
        "score": None if score is None or math.isnan(score) else score,
        "by_target": {
            t: None if math.isnan(v) else v for t, v in found.by_target().items()
        },
        "not_predicted": [
            {found.column: name, "problem": why} for name, why in found.unfit
        ],
    }
    print(json.dumps(told))


_SHOWN = 10
