"""A trained model that predicts, without Flower and without a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import datasets
from clients.models.forms import Architecture

from ..config import RunSettings, build
from ..data import GraphPartition, GraphSet
from ..device import choose_device
from ..errors import ConfigError, DataError
from ..plugins import is_plugin, origin, split
from .folder import EMBEDDING, About, read_about, read_weights
from .predictions import Predictions

log = logging.getLogger("flwr.fedgraph")

_NONE = np.zeros(0, np.int64)
_HAIR = 1e-6  # what rounding may change of a score


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model of a folder, ready to predict; made by :func:`load_model`."""

    about: About
    name: str
    architecture: Architecture
    module: nn.Module
    settings: RunSettings
    device: torch.device

    def predict_folder(self, path: str | Path) -> Predictions:
        """Predict all items of a file or folder, in the form of the run's own data.

        Raises
        ------
        ConfigError, DataError
            The data cannot be read, or do not fit the model.
        """
        settings = self.settings
        has_tasks = self.about.kind in ("binary", "regression")
        tasks = list(self.about.outputs) if has_tasks else []
        items = datasets.load_new(settings, Path(path), tasks, schema=self.about.schema)
        self._check(items.graphs)
        new = _all_to_test(items.graphs, self.about.kind)
        if self.about.kind == "regression":
            new = replace(new, scales=datasets.target_scales(settings, tasks))
        found = self.outputs(new)
        return self._named(found, items.names, items.column, unfit=items.unfit)

    def predict_test(
        self, path: str | Path | None = None, *, client: int | None = None
    ) -> Predictions:
        """Predict the test items of the run, whose score is that of the run.

        Parameters
        ----------
        path : path, optional
            The data that the client was trained on; for generated data nothing.
        client : int, optional
            Whose; not needed where only one client has the model.

        Raises
        ------
        ConfigError, DataError
            Nothing says which client's, the data are others, or edges were noisy.
        """
        if self.about.kind == EMBEDDING:
            raise ConfigError(
                f"model {self.name!r} embeds graphs, and its run tested none of them;"
                " give the FOLDER of the graphs to embed, without --test"
            )
        if float(self.about.config.get("privacy.edge-epsilon", 0)) > 0:
            raise ConfigError(
                "the run measured its model on noisy edges, which are the client's own"
                " secret: its score cannot be repeated on the graphs as they are;"
                " predict new items instead"
            )
        owners = self.about.models[self.name]
        if client is None and len(owners) != 1:
            raise ConfigError(
                f"model {self.name!r} is that of clients {owners}; say whose test items"
                " by --client ID"
            )
        number = owners[0] if client is None else client
        partition = self.read(path, number)
        test = partition.test
        # Validation and test items in one go, as the run itself measured them.
        outputs = self.outputs(partition)[len(partition.val) :]
        rows = partition.graph_ids[test].tolist()
        column, names = datasets.name_items(self._at(path), number, rows)
        labels = partition.graphs.y[test]
        found = self._named(outputs, names, column, labels=labels)
        self._warn_of_other_data(found.score())
        return found

    def _warn_of_other_data(self, score: float | None) -> None:
        """Say if a client's own model scores otherwise than in its run."""
        scores = self.about.scores
        told = isinstance(scores, dict) and scores.get(f"test {self.about.metric}")
        if type(told) is not float or score is None:
            return
        if abs(score - told) <= _HAIR * max(1.0, abs(told)):
            return
        log.warning(
            "model %r has %s %.4f on the test items here, and had %.4f in its run: the"
            " data have changed since, so that it may have been trained on some of"
            " these items, or this machine rounds otherwise",
            self.name,
            self.about.metric,
            score,
            told,
        )

    def read(self, path: str | Path | None, client: int) -> GraphPartition:
        """Read a client's data as the run did, with their split.

        Raises
        ------
        ConfigError, DataError
            As ``datasets.load_partition``; or the data do not fit the model.
        """
        settings = self._at(path)
        if datasets.reads_files(settings) and not settings.data_dir:
            raise ConfigError(
                f"dataset {settings.dataset!r} is read from files; give the folder that"
                " the client was trained on"
            )
        partition = datasets.load_partition(settings, client)
        self._check(partition.graphs)
        return partition

    def _at(self, path: str | Path | None) -> RunSettings:
        """Return the run's settings with the data at a path."""
        place = "" if path is None else str(Path(path).expanduser().absolute())
        return replace(self.settings, data_dir=place)

    def outputs(self, partition: GraphPartition) -> NDArray[np.float32]:
        """Predict the validation items of a partition, then its test items.

        Returns
        -------
        float32 array, shape (num_val + num_test, num_outputs)
            Logits, or the numbers that a regression predicts.

        Raises
        ------
        DataError
            An output is not finite.
        """
        with _as_in_a_run(self.settings.torch_threads):
            data = self.architecture.collate(partition, self.device)
            if spec := self.architecture.diffusion():
                graphs, cache_dir = partition.graphs, self.settings.cache_dir
                edges = datasets.load_diffusion(graphs, spec, cache_dir=cache_dir)
                data = data.with_view(edges)
            found = self.architecture.outputs(self.module, data).cpu().numpy()
        found = partition.in_units(found)
        if num_bad := int((~np.isfinite(found).all(axis=1)).sum()):
            raise DataError(
                f"model {self.name!r} predicts NaN or infinity for {num_bad} of"
                f" {len(found)} items; look at their features, or train again with a"
                " lower learning rate"
            )
        return found

    def _named(
        self, outputs: NDArray[Any], names: list[str], column: str, **more: Any
    ) -> Predictions:
        about = self.about
        scales = datasets.target_scales(self.settings, list(about.outputs))
        return Predictions(
            spreads=tuple(spread for _, spread in scales),
            outputs=outputs,
            names=names,
            column=column,
            kind=about.kind,
            metric=about.metric,
            labels_of=list(about.outputs),
            rarest=about.rarest,
            by_precision=about.by_precision,
            **more,
        )

    def _check(self, graphs: GraphSet) -> None:
        """Refuse data whose features are others than those of the run."""
        wanted, got = self.architecture.num_features, graphs.num_features
        columns, now = self.about.columns, graphs.columns
        is_own = (
            self.settings.dataset == datasets.SMILES_CSV
        )  # whose columns are the version's
        if got != wanted or (columns != now and (is_own or (columns and now))):
            cure = "give data with the labels and attributes of the run's"
            if is_own:
                cure = "train again: the version that trained it read SMILES otherwise"
            raise DataError(
                f"the model reads {wanted} features ({columns or 'as its run has them'}"
                f"), these data have {got} ({now or 'as read'}); {cure}"
            )


def load_model(
    folder: str | Path, name: str = "", *, device: str = "cpu", cache_dir: str = ""
) -> TrainedModel:
    """Load a model from a model folder.

    Parameters
    ----------
    folder : path
        ``models/`` of a results folder, a site's own ``model/``, or a copy.
    name : str
        Which of its models, e.g. "global" or "cluster-1"; not needed if it has one.
    device : str
        As the run-config key.
    cache_dir : str
        Folder for converted data; "" means as in runs.

    Raises
    ------
    DataError
        The folder is damaged or none, has no such model, its weights do not predict by
        themselves, or its data set is a module that nobody here has imported.
    """
    path = Path(folder).expanduser()
    about = read_about(path)
    check_plugin(str(about.config["dataset"]))
    if about.architecture is None:
        raise DataError(f"the models in {path} cannot predict: {about.why_not}")
    name, weights = read_weights(path, about, name)
    architecture = Architecture.from_json(about.architecture)
    where = choose_device(device)
    if len(about.outputs) != architecture.num_classes:
        raise DataError(
            f"{path} names {len(about.outputs)} outputs of a model that has"
            f" {architecture.num_classes}; copy the model folder again, whole"
        )
    tensors = {n: torch.from_numpy(np.array(a)) for n, a in weights.items()}
    # It says nothing of a model, and could be 0 once.
    known = {**RunSettings.defaults(), **about.config, "checkpoint-every": 1}
    settings = build(RunSettings, known, {})
    return TrainedModel(
        about=about,
        name=name,
        architecture=architecture,
        module=architecture.load(tensors, where),
        settings=replace(settings, cache_dir=cache_dir),
        device=where,
    )


def check_plugin(dataset: str) -> None:
    """Refuse a data set in a module of this machine: to import it runs its code.

    A model folder may be a stranger's. This project's own modules are the user's.

    Raises
    ------
    DataError
    """
    if not is_plugin(dataset):
        return
    module, _ = split(dataset)
    if origin(module) is None and module not in sys.modules:
        raise DataError(
            f"the model is of data set {dataset!r}, in a module {module!r} outside of"
            " this project, which a model folder may not import; if you trust it, put"
            " it into folder plugins, or import it yourself before load_model"
        )


@contextmanager
def _as_in_a_run(threads: int) -> Iterator[None]:
    """Let torch round as it does at clients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def _all_to_test(graphs: GraphSet, kind: str) -> GraphPartition:
    count = graphs.num_nodes if kind == "nodes" else len(graphs)
    return GraphPartition(
        client_id=0,
        graphs=graphs,
        graph_ids=np.arange(count),
        train=_NONE,
        val=_NONE,
        test=np.arange(count),
    )
