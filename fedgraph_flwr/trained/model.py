"""A trained model that predicts, without Flower and without a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import datasets
from clients.base import GraphClient
from clients.job import ModelSpec
from clients.tasks.scores import (
    calibration_error,
    confusion,
    mean_absolute_error,
    of_classes,
    precision,
    probabilities,
    rank_classes,
    roc_auc,
)
from clients.training import as_in_a_run
from datasets.splits import TEST, with_roles

from ..core.config import PAPER, RunSettings, build
from ..core.data import GraphPartition, GraphSet
from ..core.errors import ConfigError, DataError
from ..core.files import write_csv
from ..core.plugins import NAMING_KEYS, is_plugin, origin, read_params, split
from ..core.process import choose_device
from ..core.tasks import AVERAGE_PRECISION
from ..core.words import shortened
from ..registry import find_method, on_data
from ..resolve import defaults
from .model_folder import EMBEDDING, About, Temperatures, read_about, read_weights

if TYPE_CHECKING:
    import pandas as pd

    from .trust import Trust

_NUMBERS = ("regression", EMBEDDING)  # kinds whose outputs are told as they are
MEASURES = {"roc-auc": roc_auc, "mae": mean_absolute_error}  # of labels of tasks
SCALED = "mae in spreads of csv-label-scale"


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model predicts for some items.

    Parameters
    ----------
    outputs : float32 array, shape (num_items, num_outputs)
        Logits, numbers or embeddings.
    names : list of str
        Of the items.
    column : str
        What a name is, e.g. "graph"; "row" counts from 0, as a run counts its own data.
    kind, metric : str
        See ``About``.
    labels_of : list of str
        Name of each class, or of each task.
    labels : array, optional
        Classes, (num_items,), or labels of tasks, (num_items, num_outputs).
    unfit : list of (str, str)
        Items that cannot be predicted, and why.
    rarest, by_precision : str, bool
        See ``About``.
    thresholds : mapping
        Probability from which an item is called by the name of an output; without one
        it is called by the largest probability, or from 0.5 on.
    spreads : tuple of float
        By which a model learns each of several numbers; empty: as they are.
    temperatures : tuple of float
        By which logits are divided: one, or one for each target; empty: 1.
    doubts : mapping
        Columns that say how unlike known items each one is.
    """

    outputs: NDArray[np.float32]
    names: list[str]
    column: str
    kind: str
    metric: str
    labels_of: list[str]
    labels: NDArray[Any] | None = None
    unfit: list[tuple[str, str]] = field(default_factory=list)
    rarest: str = ""
    by_precision: bool = False
    thresholds: Mapping[str, float] = field(default_factory=dict)
    spreads: tuple[float, ...] = ()
    temperatures: tuple[float, ...] = ()
    doubts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def is_binary(self) -> bool:
        """Whether each item is predicted yes or no, for one target or several."""
        return self.kind in ("binary", "links")

    @property
    def is_of_classes(self) -> bool:
        """Whether each item is predicted to be of one class."""
        return self.kind in ("classes", "nodes", "edges")

    @property
    def sought(self) -> int:
        """Number of the rarest class; where it is not known, of the second."""
        names = self.labels_of
        return names.index(self.rarest) if self.rarest in names else 1

    @property
    def predicted(self) -> NDArray[np.int64]:
        """Number of each item's class; of labels yes and no, 1 or 0 for each."""
        p, names = self.probabilities, self.labels_of
        if self.is_binary:
            limits = np.array([self.thresholds.get(name, 0.5) for name in names])
            return np.asarray(p >= limits, np.int64)
        limit = (
            self.thresholds.get(names[sought := self.sought])
            if len(names) == 2
            else None
        )
        if limit is not None:
            return np.where(p[:, sought] >= limit, sought, 1 - sought)
        return np.asarray(self.outputs.argmax(1), np.int64)

    def called(self) -> dict[str, dict[str, int]]:
        """Count items that were called by each name with a threshold, rightly or not.

        Empty without labels.
        """
        found: dict[str, dict[str, int]] = {}
        if self.labels is None:
            return found
        for name in self.thresholds:
            k = self.labels_of.index(name)
            is_binary = self.is_binary
            y = self.labels[:, k] if is_binary else self.labels
            known = ~np.isnan(y) if is_binary else np.ones(len(y), bool)
            ours = self.predicted[:, k] == 1 if is_binary else self.predicted == k
            is_yes = y == 1 if is_binary else y == k
            found[name] = confusion(ours[known], is_yes[known])
        return found

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each class, or of yes for each task: (num_items, num_outputs).

        The outputs themselves where they are numbers or embeddings.
        """
        if self.kind in _NUMBERS:
            return self.outputs.astype(np.float64)
        by = np.array(self.temperatures or (1.0,))
        return probabilities(self.outputs / by, is_binary=self.is_binary)

    def calibration_error(self) -> float | None:
        """Return the expected one; None without labels or probabilities."""
        if self.labels is None or not len(self.labels) or self.kind in _NUMBERS:
            return None
        return calibration_error(self.probabilities, self.labels)

    def score(self) -> float | None:
        """Score in the metric of the run's results; None without labels.

        NaN where labels allow no score.
        """
        if self.labels is None or not len(self.labels):
            return None
        return self.measure(self.metric, self.outputs, self.labels)

    @property
    def decides(self) -> str:
        """Score by which the run chose its rounds."""
        if self.spreads:
            return SCALED
        return AVERAGE_PRECISION if self.by_precision else self.metric

    def measure(
        self, metric: str, outputs: NDArray[np.float32], labels: NDArray[Any]
    ) -> float:
        """Score outputs of some items, e.g. of another model; NaN if that is none."""
        if metric == "accuracy":
            return float((outputs.argmax(1) == labels).mean())
        if metric == AVERAGE_PRECISION:
            return of_classes(precision, rank_classes(outputs, labels), self.sought)
        if metric == SCALED:
            by = np.array(self.spreads)
            return mean_absolute_error(outputs / by, labels / by).mean
        return MEASURES[metric](outputs, labels).mean

    def by_target(self) -> dict[str, float]:
        """Score of each of several numbers, whose units may differ."""
        if self.labels is None or self.kind != "regression" or len(self.labels_of) < 2:
            return {}
        found = MEASURES[self.metric](self.outputs, self.labels).per_task
        return dict(zip(self.labels_of, found.tolist(), strict=True))

    def table(self) -> pd.DataFrame:
        """One row for each item: what was predicted, then the labels.

        Those that are unfit come last and say why.
        """
        import pandas as pd  # here: it takes half a second

        head, *rows = self._rows()
        return pd.DataFrame(rows, columns=head, dtype=object)

    def _rows(self) -> list[list[Any]]:
        """Head and rows of the table."""
        names, labels = self.labels_of, self.labels
        found: dict[str, Any] = {self.column: self.names}
        outputs = dict(zip(names, self.probabilities.T.tolist(), strict=True))
        if self.is_of_classes:
            found["prediction"] = [names[k] for k in self.predicted]
            found |= {f"p({c})": p for c, p in outputs.items()}
        elif self.kind == EMBEDDING:
            found |= outputs
        elif self.kind == "regression":
            found |= {f"prediction({t})": p for t, p in outputs.items()}
        else:
            for (task, p), yes in zip(outputs.items(), self.predicted.T, strict=True):
                found |= {f"prediction({task})": [*map(str, yes)], f"p({task})": p}
        if labels is not None and self.is_of_classes:
            found["label"] = [names[k] for k in labels]
        elif labels is not None:
            for task, column in zip(names, labels.T, strict=True):
                found[f"label({task})"] = [*map(_number, column)]
        found |= {name: [*map(float, of)] for name, of in self.doubts.items()}
        told = zip(*found.values(), strict=True)
        gap = [""] * (len(found) - 1)
        return [
            [*found, "problem"],
            *(["" if cell != cell else cell for cell in row] + [""] for row in told),
            *([name, *gap, why] for name, why in self.unfit),
        ]

    def write(self, path: str | Path) -> None:
        """Write the table as CSV.

        Raises
        ------
        StorageError
        """
        write_csv(Path(path), self._rows())


def _number(value: float) -> str:
    """Write a label as short as can be; a missing one is empty."""
    return "" if np.isnan(value) else np.format_float_positional(value, trim="-")


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model of a folder, ready to predict; made by :func:`load_model`."""

    about: About
    name: str
    client: type[GraphClient[Any]]
    spec: ModelSpec[Any]
    module: nn.Module
    settings: RunSettings
    device: torch.device
    kept: Temperatures = field(default_factory=Temperatures)

    def predict_folder(
        self, path: str | Path, trust: Trust | None = None
    ) -> Predictions:
        """Predict all items of a file or folder, in the form of the run's own data.

        Parameters
        ----------
        trust : Trust, optional
            As :meth:`trust` gives it.

        Raises
        ------
        ConfigError, DataError
            The data cannot be read, or do not fit the model.
        """
        try:
            return self._predicted(path, trust)
        except ModuleNotFoundError as error:  # PyTorch brings no RDKit, nor SciPy
            raise DataError(
                f"{path} cannot be predicted here: {error}; install it, e.g. pip"
                f" install {error.name}"
            ) from error

    def _predicted(self, path: str | Path, trust: Trust | None) -> Predictions:
        settings, tasks, items = self.settings, self._tasks, self.new_items(path)
        graphs = items.graphs
        rows = np.arange(len(graphs.y))
        new = with_roles(0, graphs, rows, np.full(len(rows), TEST))
        if self.about.kind == "regression":
            new = replace(new, scales=datasets.target_scales(settings, tasks))
        found = self.outputs(new)
        said = self._said(trust, new.graphs, rows)
        return self._named(found, items.names, items.column, unfit=items.unfit, **said)

    @property
    def _tasks(self) -> list[str]:
        has_tasks = self.about.kind in ("binary", "regression")
        return list(self.about.outputs) if has_tasks else []

    def new_items(self, path: str | Path) -> datasets.NewItems:
        """Read items to predict; ``Raises`` as :meth:`predict_folder`."""
        schema, settings = self.about.schema, self.settings
        items = datasets.load_new(settings, Path(path), self._tasks, schema=schema)
        self._check(items.graphs)
        if settings.edge_features:
            return items
        return replace(items, graphs=items.graphs.without_edge_features())

    def predict_test(
        self,
        path: str | Path | None = None,
        *,
        client: int | None = None,
        trust: Trust | None = None,
    ) -> Predictions:
        """Predict the test items of the run, whose score is that of the run.

        Parameters
        ----------
        path : path, optional
            The data that the client was trained on; for generated data nothing.
        client : int, optional
            Whose; not needed where only one client has the model.
        trust : Trust, optional
            As :meth:`trust` gives it.

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
        if self.about.config.get("privacy.edge-epsilon"):
            raise ConfigError(
                "the run measured its model on noisy edges, which are the client's own"
                " secret: its score cannot be repeated on the graphs as they are;"
                " predict new items instead"
            )
        number = self._owner(client)
        partition = self.read(path, number)
        test = partition.test
        # Validation and test items in one go, as the run itself measured them.
        outputs = self.outputs(partition)[len(partition.val) :]
        rows = partition.graph_ids[test].tolist()
        column, names = datasets.name_items(self._at(path), number, rows)
        labels = partition.graphs.y[test]
        said = self._said(trust, partition.graphs, test)
        return self._named(outputs, names, column, labels=labels, **said)

    def trust(self, path: str | Path, *, client: int | None = None) -> Trust:
        """Read of a client's data how far to trust predictions.

        Parameters, ``Raises`` as :meth:`predict_test`.
        """
        from .trust import Trust  # here: SciPy and scikit-learn

        own = self.read(path, self._owner(client))
        outputs = self.outputs(own)[: len(own.val)]
        return Trust.of(own, outputs, self.about.kind, self.about.outputs)

    def _owner(self, client: int | None) -> int:
        """Return whose data are meant."""
        owners = self.about.models[self.name]
        if client is None and len(owners) != 1:
            raise ConfigError(
                f"model {self.name!r} is that of clients {owners}; say whose test items"
                " by --client ID"
            )
        return owners[0] if client is None else client

    def _said(
        self, trust: Trust | None, graphs: GraphSet, at: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Say for :class:`Predictions` how far to trust these items.

        Thresholds are probabilities, and move with them.
        """
        if not (trust or self.kept.temperatures):
            return {}
        temperatures = (trust or self.kept).temperatures
        limits = dict(self.about.thresholds.get(self.name, {}))
        for name, p in limits.items():
            of = self.about.outputs.index(name) if self.about.kind == "binary" else 0
            with np.errstate(divide="ignore", over="ignore"):  # p may be 0 or 1
                odds = np.log(p) - np.log1p(-p)
                moved = float(1 / (1 + np.exp(-odds / temperatures[of])))
            # A hair lower, so that rounding calls nobody otherwise.
            limits[name] = moved * (1 - 1e-12)
        return {
            "temperatures": temperatures,
            "doubts": trust.doubts(graphs, at) if trust else {},
            "thresholds": limits,
        }

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
        client, params = self.client, self.spec.params
        with as_in_a_run(self.settings.torch_threads), torch.no_grad():
            client.check_graphs(partition.graphs, self.settings)
            data = client.DATA.collate(partition, self.device)
            how = client.diffusion(params)
            if how is not None and getattr(client, "EMBEDS_VIEW", False):
                graphs, cache_dir = partition.graphs, self.settings.cache_dir
                edges = datasets.load_diffusion(graphs, how, cache_dir=cache_dir)
                data = data.with_view(edges)
            found = client.predict(self.module, data, params).cpu().numpy()
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
            **{"thresholds": about.thresholds.get(self.name, {}), **more},
        )

    def _check(self, graphs: GraphSet) -> None:
        """Refuse data whose features are others than those of the run."""
        wanted, got = self.spec.num_features, graphs.num_features
        columns, now = self.about.columns, graphs.columns
        # Columns of molecules are the version's.
        is_own = self.settings.dataset == datasets.SMILES_CSV
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
    for key in NAMING_KEYS:
        check_plugin(key, str(about.config[key]))
    if about.architecture is None:
        raise DataError(f"the models in {path} cannot predict: {about.why_not}")
    name, weights = read_weights(path, about, name)
    tensors = {n: torch.from_numpy(np.array(a)) for n, a in weights.items()}
    where = choose_device(device)
    try:
        client, spec = _read_spec(about)
        module = _fill(client, spec, tensors)
    except (ConfigError, TypeError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"the model in {path} cannot be built: {error}; take weights and model.json"
            " from one and the same model folder, and use the version of this project"
            " that wrote it"
        ) from error
    return TrainedModel(
        about=about,
        name=name,
        client=client,
        spec=spec,
        module=module.to(where).eval(),
        settings=replace(spec.settings, cache_dir=cache_dir),
        device=where,
        kept=Temperatures.read(path, name, about),
    )


def _read_spec(about: About) -> tuple[type[GraphClient[Any]], ModelSpec[Any]]:
    """Read what a model is built from: its run's config, and the widths of the data."""
    config = {**defaults(), "encoder": PAPER, **about.config}
    config["checkpoint-every"] = 1  # once 0
    kind, task = about.kind, str(config["task"])
    method = on_data(find_method(str(config["method"])), kind, task)
    own, table = dict(about.config), method.params
    if given := str(own.get("plugin.params", "")):
        own |= {table.key(name): v for name, v in read_params(given).items()}
    widths, settings = about.architecture or {}, build(RunSettings, config, {})
    client: Any = method.client
    count = client.width(settings) if kind == EMBEDDING else widths["num_classes"]
    if len(about.outputs) != count:
        raise ValueError(f"it names {len(about.outputs)} outputs, but has {count}")
    called = set().union(*about.thresholds.values())
    if called - {*(() if kind in _NUMBERS else about.outputs)}:
        raise ValueError(f"it has thresholds of {shortened(sorted(called))}")
    spec = ModelSpec(
        settings=settings,
        params=build(table, {**table.defaults(), **own}, {}),
        task=build(method.task.settings, config, {}),
        **widths,
    )
    return client, spec


def _fill(
    client: type[GraphClient[Any]], spec: ModelSpec[Any], tensors: dict[str, Tensor]
) -> nn.Module:
    """Build the model with these tensors; first without memory, to compare shapes."""
    with torch.device("meta"):
        client.build_predictor(spec).load_state_dict(tensors, assign=True)
    module = client.build_predictor(spec)
    module.load_state_dict(tensors)
    return module


def check_plugin(key: str, name: str) -> None:
    """Refuse a method or data set in a module of this machine, whose code would run.

    A model folder may be a stranger's. This project's own modules are the user's.

    Raises
    ------
    DataError
    """
    if not is_plugin(name):
        return
    module, _ = split(name)
    if origin(module) is None and module not in sys.modules:
        raise DataError(
            f"the model's {key} is {name!r}, in a module {module!r} outside of this"
            " project, which a model folder may not import; if you trust it (method.py"
            " of the folder is a copy), put it into folder plugins, or import it"
            " yourself before load_model"
        )
