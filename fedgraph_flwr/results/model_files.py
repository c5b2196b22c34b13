"""Model folders of a run, and a new run that begins from a former one's model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import datasets
from strategies.base import AbstractGraphStrategy

from ..agreement import class_names, common_columns, name_classes
from ..core.config import RunSettings
from ..core.errors import ConfigError, DataError
from ..core.logs import log
from ..core.tasks import BY_TASK, THRESHOLD
from ..core.wire import BY_PRECISION, RAREST, NamedArrays, Parcel, evaluation_key
from ..resolve import Resolved
from ..trained.model_folder import (
    EMBEDDING,
    About,
    plain_config,
    read_about,
    read_weights,
    write_folder,
)
from .provenance import hash_weights, versions
from .reader import blaming

if TYPE_CHECKING:
    from clients.base import GraphClient
    from clients.job import ModelSpec


FOLDER = "model"  # of a client's private state
_PRIVATE = (
    "they are the tensors that clients share, and the others are private; take the"
    " model that a site keeps, <state-dir>/<experiment>/client-<id>/model"
)


def keep_models(
    path: Path,
    resolved: Resolved,
    strategy: AbstractGraphStrategy,
    models: Mapping[str, NamedArrays],
    summary: Mapping[str, Any],
) -> None:
    """Make ``models/`` of a results folder a model folder; nothing without models."""
    if not models:
        return
    infos = [info for _, info in sorted(strategy.clients.items())]
    spec: ModelSpec[Any] | None = None
    if all(info.widths == infos[0].widths for info in infos):
        spec = resolved.spec(**infos[0].widths)
    client, first = resolved.method.client, next(iter(models.values()))
    architecture, why_not = _describe(client, spec, first)
    labels = list(infos[0].tasks) or class_names(infos[0])
    kind, outputs = _name_outputs(client, resolved.settings, labels)
    final, rarest = summary.get("final") or {}, summary.get("rarest_class") or {}
    about = About(
        experiment=summary["experiment"],
        config=plain_config(summary["config"]),
        kind=kind,
        metric=summary["metric"],
        rounds=summary["rounds"],
        outputs=outputs,
        columns=common_columns(strategy.clients) if spec else "",
        architecture=architecture,
        why_not=why_not,
        models={name: _owners(name, strategy) for name in models},
        scores={
            "split": summary["split"],
            "metric": summary["metric"],
            "mean over clients": final.get("mean"),
            "clients": final.get("num_clients"),
        },
        schema=datasets.read_schema_text(resolved.settings),
        lineage=summary["lineage"],
        versions=summary["versions"],
        rarest=rarest.get("class", ""),
        thresholds={
            name: _medians(final.get("confusion") or {}, _owners(name, strategy))
            for name in models
        },
        by_precision=rarest.get("chooses_by_precision", False),
    )
    write_folder(path, models, about)


def keep_own_model(client: GraphClient[Any], reply: Parcel, *, rounds: int) -> None:
    """Keep a client's whole model, shared and private tensors, in its own folder.

    Parameters
    ----------
    client : GraphClient
        Right after the closing evaluation.
    reply : Parcel
        Its answer, from which scores are taken.
    rounds : int
        After which the model is.
    """
    job, graphs = client.job, client.data.partition.graphs
    facts = client.round.facts
    name = f"client-{job.client_id}"
    from clients.training import to_arrays

    tensors = to_arrays({n: t.detach() for n, t in client.predictor().items()})
    architecture, why_not = _describe(type(client), job.spec, tensors)
    classes = name_classes(graphs.classes, graphs.num_classes)
    labels = list(client.data.partition.tasks) or classes
    kind, outputs = _name_outputs(type(client), job.settings, labels)
    tables = (job.settings, job.privacy, job.task, job.params)
    config = {k: v for table in tables for k, v in table.to_config().items()}
    point = "post_aggregation"
    scores = {
        f"{split} {metric}": reply.metrics[key]
        for split in job.learning.splits
        for metric in (job.learning.metric, *job.learning.also)
        if (key := evaluation_key(split, point, metric)) in reply.metrics
    }
    rarest = outputs[int(facts[RAREST])] if RAREST in facts else ""
    about = About(
        experiment=job.store.experiment,
        config=plain_config(config),
        kind=kind,
        metric=job.learning.metric,
        rounds=rounds,
        outputs=outputs,
        columns=graphs.columns,
        architecture=architecture,
        why_not=why_not,
        models={name: [job.client_id]},
        scores=scores,
        schema=datasets.read_schema_text(job.settings),
        versions=versions(),
        rarest=rarest,
        thresholds={name: _own_thresholds(reply, outputs, rarest)},
        by_precision=bool(facts.get(BY_PRECISION)),
    )
    write_folder(job.store.folder / FOLDER, {name: tensors}, about)


def _medians(
    counted: Mapping[str, Mapping[str, Mapping[str, float]]], owners: list[int]
) -> dict[str, float]:
    """Median of the thresholds that clients chose, by the name of an output."""
    found = {}
    for name, clients in counted.items():
        of = [clients.get(str(c), {}).get(THRESHOLD) for c in owners]
        if known := [limit for limit in of if limit is not None]:
            found[name] = float(np.median(known))
    return found


def _own_thresholds(reply: Parcel, outputs: list[str], rarest: str) -> dict[str, float]:
    """Thresholds that a client chose, by the name of an output."""
    at = evaluation_key("val", "post_aggregation", THRESHOLD)
    if at in reply.metrics:
        return {rarest or outputs[1]: float(reply.metrics[at])}
    return {
        name: float(reply.metrics[f"{at}{BY_TASK}{k}"])
        for k, name in enumerate(outputs)
        if f"{at}{BY_TASK}{k}" in reply.metrics
    }


def _describe(
    client: type[GraphClient[Any]], spec: ModelSpec[Any] | None, arrays: NamedArrays
) -> tuple[dict[str, int] | None, str]:
    """Say how wide the model is that has these tensors, or why it cannot predict."""
    if spec is None:
        return None, "clients differ in features or classes; " + _PRIVATE
    if client.WHY_NOT:
        return None, client.WHY_NOT
    if client.build_predictor(spec).state_dict().keys() - arrays.keys():
        return None, _PRIVATE
    names = "num_features", "num_classes", "num_edge_features", "num_graph_features"
    return {name: width for name in names if (width := getattr(spec, name))}, ""


def _name_outputs(
    client: type[GraphClient[Any]], settings: RunSettings, labels: list[str]
) -> tuple[str, list[str]]:
    """Say what the outputs of a model are, and name each."""
    from clients.tasks.graph_embedder import EmbeddingClient  # takes a second

    if not issubclass(client, EmbeddingClient):
        return datasets.label_kind(settings), labels
    return EMBEDDING, [f"e{i}" for i in range(client.width(settings))]


def _owners(name: str, strategy: AbstractGraphStrategy) -> list[int]:
    """Clients that have a model, by its name."""
    kind, _, number = name.partition("-")
    if kind == "cluster":
        return strategy.clusters()[int(number)]
    return [int(number)] if kind == "client" else sorted(strategy.clients)


_SUFFIX = ".safetensors"
# Keys that decide who trains and tests on what, in one data set.
_SPLIT = (
    "split",
    "split-seed",
    "folds",
    "fold",
    "partition",
    "num-clients",
    "held-out",
    "held-out-clients",
)


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Tensors to begin from, and the run that they come from.

    Parameters
    ----------
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
        if before.get(key, now.get(key)) != now.get(key)
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
