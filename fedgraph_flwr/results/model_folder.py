"""Model folders of a run: one of the server's models, one of each client's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
from strategies.base import AbstractGraphStrategy

from ..agreement import class_names, common_columns, name_classes
from ..config import RunSettings
from ..resolve import Resolved
from ..trained.folder import EMBEDDING, About, plain_config, write_folder
from ..wire import BY_PRECISION, RAREST, NamedArrays, Parcel, evaluation_key
from .provenance import versions

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
    widths = {(i.num_features, i.num_classes) for i in infos}
    spec: ModelSpec[Any] | None = None
    if len(widths) == 1:
        ((num_features, num_classes),) = widths
        spec = resolved.spec(num_features=num_features, num_classes=num_classes)
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
    client: type[GraphClient[Any]], spec: ModelSpec[Any] | None, arrays: NamedArrays
) -> tuple[dict[str, int] | None, str]:
    """Say how wide the model is that has these tensors, or why it cannot predict."""
    if spec is None:
        return None, "clients differ in features or classes; " + _PRIVATE
    if client.WHY_NOT:
        return None, client.WHY_NOT
    if client.build_predictor(spec).state_dict().keys() - arrays.keys():
        return None, _PRIVATE
    return {"num_features": spec.num_features, "num_classes": spec.num_classes}, ""


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
