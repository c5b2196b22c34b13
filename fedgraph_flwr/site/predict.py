"""``fedgraph site predict``: predict new items with a trained model, as a CSV file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, StorageError
from ..trained import load_model
from ..trained.model import Predictions
from ..trained.model_folder import Temperatures
from .findings import AsJson, CacheDir, Device

if TYPE_CHECKING:
    from ..trained.trust import Trust

_SHOWN = 10  # items that cannot be predicted


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
            help="With --test or --trained-on: whose data, if several clients have the"
            " model.",
        ),
    ] = None,
    trained_on: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            help="The data that the client was trained on: their validation items"
            " calibrate probabilities, and columns say how unlike training items a row"
            " is.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Probability from which an item is called by the rarer of two classes,"
            " or yes; else that of the model.",
        ),
    ] = None,
    device: Device = "cpu",
    cache_dir: CacheDir = "",
    as_json: AsJson = False,
) -> int:
    """Predict new graphs, nodes or molecules with a trained model, as a CSV file.

    MODEL is models/ of a results folder, a copy of it, or the model that this site
    keeps, private layers included: <state-dir>/<experiment>/client-<id>/model. FOLDER
    has the form of the run's own data, labels left out. Data that do not fit the model
    are refused; the exit code is 1 if some items cannot be predicted.
    """
    loaded = load_model(model, name, device=device, cache_dir=cache_dir)
    trust = loaded.trust(trained_on, client=client) if trained_on else None
    if test:
        found = loaded.predict_test(folder, client=client, trust=trust)
    elif folder is None:
        raise ConfigError("give the FOLDER of the items to predict, or --test")
    else:
        found = loaded.predict_folder(folder, trust)
    if threshold is not None:
        found = replace(found, thresholds=_given(found, threshold))
    found.write(out)
    kept = loaded.kept.notes
    if trust and trust.temperatures:
        kept = [*trust.notes, _keep(trust, model, loaded.name)]
    before = None
    if found.temperatures:
        before = replace(found, temperatures=()).calibration_error()
    facts = {
        "model": loaded.name,
        "out": str(out),
        "items": len(found.names),
        "metric": found.metric,
        "score": _finite(found.score()),
        "calibration_error": _finite(found.calibration_error()),
        "calibration_error_before": _finite(before),
        "by_target": {t: _finite(v) for t, v in found.by_target().items()},
        "thresholds": dict(found.thresholds),
        "notes": [
            *kept,
            *_called(found, is_given=threshold is not None),
            *_ranking(found),
        ],
        "not_predicted": [
            {found.column: name, "problem": why} for name, why in found.unfit
        ],
    }
    if as_json:
        print(json.dumps(facts))
    else:
        _tell(found, facts)
    return 1 if found.unfit else 0


def _keep(trust: Trust, model: Path, name: str) -> str:
    """Keep the temperatures beside the model, where the next prediction finds them."""
    try:
        Temperatures(temperatures=trust.temperatures, notes=trust.notes).write(
            model, name
        )
    except StorageError as error:
        return f"not kept for further predictions: {error}"
    return "kept beside the model, for further predictions"


def _given(found: Predictions, threshold: float) -> dict[str, float]:
    """Thresholds that the command line gives, by the name of an output."""
    if found.kind == "binary":
        return dict.fromkeys(found.labels_of, threshold)
    if not found.is_of_classes or len(found.labels_of) != 2:
        raise ConfigError(
            "--threshold is for two classes, or for targets that are yes or no; this"
            f" model has kind {found.kind!r} with {len(found.labels_of)} outputs: leave"
            " --threshold out"
        )
    return {found.labels_of[found.sought]: threshold}


def _called(found: Predictions, *, is_given: bool) -> list[str]:
    """Say which thresholds decide, and how many test items they call rightly."""
    whose = "as --threshold says" if is_given else "chosen on validation items"
    counts, lines = found.called(), []
    for name, limit in found.thresholds.items():
        line = f"called {name!r} if p({name}) >= {limit:.4g}, {whose}"
        if name in counts:
            tp, fp, fn, tn = counts[name].values()
            line += f": TP {tp}, FP {fp}, FN {fn}, TN {tn}"
        lines.append(line)
    if (more := len(lines) - _SHOWN) > 0:
        lines[_SHOWN:] = [f"and {more} more targets, each by its threshold"]
    return lines


def _finite(score: float | None) -> float | None:
    return None if score is None or math.isnan(score) else score


def _tell(found: Predictions, facts: Mapping[str, Any]) -> None:
    print(f"{facts['items']} items predicted by {facts['model']}: {facts['out']}")
    if found.score() is not None:
        none = "none, labels are of one class"
        score = none if facts["score"] is None else facts["score"]
        print(f"test {found.metric} of {facts['items']} items: {score}")
        for target, of_one in facts["by_target"].items():
            print(f"test {found.metric} of {target}: {of_one}")
        if (gap := facts["calibration_error"]) is not None:
            before = facts["calibration_error_before"]
            words = "" if before is None else f", {before:.4f} without a temperature"
            print(f"test expected calibration error: {gap:.4f}{words}")
    for words in facts["notes"]:
        print(words)
    for name, why in found.unfit[:_SHOWN]:
        print(f"not predicted: {found.column} {name}: {why}")
    if len(found.unfit) > _SHOWN:
        print(f"not predicted: {len(found.unfit) - _SHOWN} more; see {facts['out']}")


def _ranking(found: Predictions) -> list[str]:
    """Say how to find a rare class, where predictions alone do not show it."""
    names, labels, is_binary = found.labels_of, found.labels, found.is_binary
    if not found.names or not (is_binary or (found.is_of_classes and len(names) > 1)):
        return []
    notes = []
    if found.by_precision and labels is not None:
        score = found.measure(found.decides, found.outputs, labels)
        notes.append(f"test average precision of {len(labels)} items: {score:.4f}")
    for k in range(len(names)) if is_binary else [found.sought]:
        ours = found.predicted[:, k] if is_binary else found.predicted
        is_one = bool((ours == ours[0]).all())
        if is_one:
            told = ("no", "yes")[ours[0]] if is_binary else repr(names[ours[0]])
            notes.append(f"all {len(ours)} predictions are {told}")
        if is_one or found.by_precision:
            notes.append(f"to find {names[k]!r}, sort by p({names[k]}), largest first")
    return notes
