"""``fedgraph site predict``: predict new items with a trained model, as a CSV file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError
from ..trained import load_model
from ..trained.model import Predictions
from .findings import AsJson


def predict(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="The items to predict; with --test the data that the client was"
            " trained on."
        ),
    ] = None,
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The CSV file to write.")],
    name: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Which of several models, e.g. global or cluster-1.",
        ),
    ] = "",
    test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="Predict the test items of the run; the score printed is that of the"
            " run.",
        ),
    ] = False,
    client: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            help="With --test: whose test items, if several clients have the model.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Predict the rarer of two classes, or yes, from this probability on"
            " (else 0.5).",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    cache_dir: Annotated[str, typer.Option(help="Folder for converted data.")] = "",
    as_json: AsJson = False,
) -> int:
    """Predict new graphs, nodes or molecules with a trained model, as a CSV file.

    MODEL is models/ of a results folder, a copy of it, or the model that this site
    keeps, private layers included: <state-dir>/<experiment>/client-<id>/model. FOLDER
    has the form of the run's own data, labels left out. Data that do not fit the model
    are refused; the exit code is 1 if some items cannot be predicted.
    """
    loaded = load_model(model, name, device=device, cache_dir=cache_dir)
    if test:
        found = loaded.predict_test(folder, client=client)
    elif folder is None:
        raise ConfigError("give the FOLDER of the items to predict, or --test")
    else:
        found = loaded.predict_folder(folder)
    if threshold is not None:
        found = replace(found, threshold=threshold)
    found.write(out)
    (_tell_json if as_json else _tell)(found, loaded.name, out)
    return 1 if found.unfit else 0


def _tell(found: Predictions, model: str, out: Path) -> None:
    print(f"{len(found.names)} items predicted by {model}: {out}")
    score = found.score()
    if score is not None:
        facts = "none, labels are of one class" if math.isnan(score) else repr(score)
        print(f"test {found.metric} of {len(found.names)} items: {facts}")
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
    count, names, labels = len(found.names), found.labels_of, found.labels
    is_binary = found.kind == "binary"
    if not count or not (is_binary or (found.is_of_classes and len(names) > 1)):
        return
    if found.by_precision and labels is not None:
        score = found.measure(found.decides, found.outputs, labels)
        words = "none, labels are of one class" if math.isnan(score) else f"{score:.4f}"
        yield f"test average precision of {count} items: {words}"
    can_cut = is_binary or len(names) == 2
    for k, name in enumerate(names):
        if not is_binary and k != found.sought:
            continue
        at, number = ((..., k), 1) if is_binary else (..., k)
        ours = found.predicted[at]
        if found.threshold is not None:
            words, yes = "", ours == number
            if labels is not None:
                is_it = labels[at] == number
                both = (yes & is_it).sum()
                words = f", among them {both} of the {is_it.sum()} labelled so"
            yield f"{yes.sum()} item(s) with p({name}) >= {found.threshold:g}{words}"
            continue
        if is_one := (ours == ours[0]).all():
            words = f"class {names[ours[0]]!r}"
            words = f"{('no', 'yes')[ours[0]]} to {name!r}" if is_binary else words
            yield f"all {count} predictions are {words}"
        if found.by_precision or (is_one and can_cut):
            words = ", or give --threshold" if can_cut else ""
            what = "" if is_binary else "class "
            yield f"to find {what}{name!r}, sort by p({name}), largest first{words}"


def _tell_json(found: Predictions, model: str, out: Path) -> None:
    score = found.score()
    facts = {
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
    print(json.dumps(facts))


_SHOWN = 10
