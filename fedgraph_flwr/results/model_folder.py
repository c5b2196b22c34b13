"""Model folders of a run: one of the server's models, one of each client's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from strategies.base import AbstractGraphStrategy

from ..agreement import class_names, common_columns, name_classes
from ..config import RunSettings
from ..errors import ConfigError
from ..resolve import Resolved
from ..trained.folder import EMBEDDING, About, plain_config, write_folder
from ..wire import BY_PRECISION, RAREST, NamedArrays, Parcel, evaluation_key
from .provenance import versions

if TYPE_CHECKING:
    from clients.base import GraphClient

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
    widths = {(i.num_features, i.num_classes) for i in infos}
    spec: Any = None
    if len(widths) == 1:
        ((num_features, num_classes),) = widths
        spec = resolved.spec(num_features=num_features, num_classes=num_classes)
    client, first = resolved.method.client, next(iter(models.values()))
    architecture, why_not = _describe(client, spec, first)
    kind, outputs = _tell_outputs(
        resolved.settings, architecture, list(infos[0].tasks) or class_names(infos[0])
    )
    final, rarest = summary.get("final") or {}, summary.get("rarest_class") or {}
    about = About(
        experiment=summary["experiment"],
        config=plain_config(summary["config"]),
        kind=kind,
        metric=summary["metric"],
        rounds=summary["rounds"],
        outputs=outputs,
        columns=common_columns(strategy.clients) if len(widths) == 1 else "",
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
    from clients.tensors import to_arrays

    tensors = to_arrays({n: t.detach() for n, t in client.predictor().items()})
    architecture, why_not = _describe(type(client), job.spec, tensors)
    kind, outputs = _tell_outputs(
        job.settings,
        architecture,
        list(client.data.partition.tasks)
        or name_classes(graphs.classes, graphs.num_classes),
    )
    tables = (job.settings, job.privacy, job.task, job.params)
    config = {k: v for table in tables for k, v in table.to_config().items()}
    point = "post_aggregation"
    scores = {
        f"{split} {metric}": reply.metrics[key]
        for split in job.learning.splits
        for metric in (job.learning.metric, *job.learning.also)
        if (key := evaluation_key(split, point, metric)) in reply.metrics
    }
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
        rarest=outputs[int(facts[RAREST])] if RAREST in facts else "",
        by_precision=bool(facts.get(BY_PRECISION)),
    )
    write_folder(job.store.folder / FOLDER, {name: tensors}, about)


def _describe(
    client: type[GraphClient[Any]], spec: Any, arrays: NamedArrays
) -> tuple[dict[str, Any] | None, str]:
    """Describe the model that has these tensors, or say why it cannot predict."""
    if spec is None:
        return None, "clients differ in features or classes; " + _PRIVATE
    try:
        architecture = client.architecture(spec)
    except ConfigError as error:
        return None, str(error)
    import torch  # here: it takes a second

    needed = architecture.build(torch.Generator()).state_dict().keys()
    return (None, _PRIVATE) if needed - arrays.keys() else (architecture.to_json(), "")


def _tell_outputs(
    settings: RunSettings, architecture: Mapping[str, Any] | None, labels: list[str]
) -> tuple[str, list[str]]:
    """Say what the outputs of a model are, and name each."""
    from clients.models.forms import EMBEDDERS

    if architecture is None or architecture["form"] not in EMBEDDERS:
        return datasets.label_kind(settings), labels
    return EMBEDDING, [f"e{i}" for i in range(architecture["num_classes"])]


def _owners(name: str, strategy: AbstractGraphStrategy) -> list[int]:
    """Clients that have a model, by its name."""
    kind, _, number = name.partition("-")
    if kind == "cluster":
        return strategy.clusters()[int(number)]
    return [int(number)] if kind == "client" else sorted(strategy.clients)
