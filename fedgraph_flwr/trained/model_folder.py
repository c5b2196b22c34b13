"""The model folder: weights, what they belong to, a card, and a hash of each file.

``NAME.safetensors`` for each model, ``model.json``, ``schema.toml`` where data have
one, ``method.py`` of a plug-in, ``README.md``, and ``SHA256SUMS``, which ``sha256sum
-c`` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.checked import Wrong, between, checked, one_of
from ..core.errors import DataError
from ..core.files import (
    names_in,
    read_arrays,
    remove,
    sha256_of,
    write_arrays,
    write_json,
    write_text,
)
from ..core.plugins import is_plugin, origin, split
from ..resolve import tables

_WHAT = {
    "classes": "classifies whole graphs",
    "binary": "answers yes or no to one or more questions about a graph",
    "regression": "predicts one or more numbers for a graph",
    "embedding": "gives each graph a row of numbers, its embedding",
    "nodes": "classifies the nodes of one graph",
    "edges": "classifies the edges of one graph",
    "links": "finds links that a graph lacks",
}


def write_card(about: About) -> str:
    """Write the card, as Markdown."""
    config = about.config
    names = ", ".join(about.outputs) or "not known here"
    clients = "\n".join(
        f"| `{name}.safetensors` | {', '.join(map(str, ids))} |"
        for name, ids in about.models.items()
    )
    before = "".join(
        f"\nThe run began from `{b['model']}` of run {b['experiment']}.\n"
        for b in about.lineage[:1]
    )
    return f"""# {config["method"]} on {config["dataset"]}

The model {_WHAT[about.kind]}. Clients trained it by method `{config["method"]}` on
data `{config["dataset"]}`: run `{about.experiment}`,
{about.rounds} rounds, seed {config["seed"]}.
{before}
| file | clients |
|---|---|
{clients}

- Outputs: {names}.
- Features: {about.columns or f"`features = {config['features']}` of the run"}.
- Scores of the run: {json.dumps(about.scores)}.
- Every setting of the run is in `model.json`; SHA-256 of each file in `SHA256SUMS`.
{_thresholds(about)}
{_how(about)}

The scores hold for data like those of the run. No graph is in this folder. Weights
can still tell something of the graphs that they were trained on: give the folder to
nobody who may not know that.
"""


def _plugin_file(about: About) -> Path | None:
    """File of a method of one's own, which has the class of the model."""
    name = str(about.config["method"])
    return origin(split(name)[0]) if is_plugin(name) else None


def _thresholds(about: About) -> str:
    """Write a line of the card for each model that has thresholds."""
    return "".join(
        f"- `{name}` calls an item by a name if, on validation items best by F1:"
        f" {', '.join(f'p({k}) >= {v:.4g}' for k, v in of.items())}.\n"
        for name, of in about.thresholds.items()
        if of
    )


def _how(about: About) -> str:
    if about.architecture is None:
        return f"**These weights alone do not predict:** {about.why_not}."
    own = """
Without it: `method.py` has the class of the model. Its `load_state_dict` takes what
`safetensors.torch.load_file` reads; the widths are `architecture` in `model.json`.
"""
    return f"""With this project's code, PyTorch and PyTorch Geometric, without Flower:

    from fedgraph_flwr.trained import load_model
    predictions = load_model("THIS FOLDER").predict_folder("NEW DATA")
    predictions.write("predictions.csv")
{own * bool(_plugin_file(about))}"""


ABOUT, SUMS, CARD = "model.json", "SHA256SUMS", "README.md"
SCHEMA, METHOD = "schema.toml", "method.py"
# Keys of a run that name folders and files of the machine it ran on.
PLACES = tuple(
    key
    for table in tables()
    for key, field_ in table.config_fields().items()
    if field_.metadata["rule"].absolute
)
Arrays = Mapping[str, NDArray[np.generic]]
EMBEDDING = "embedding"  # kind of outputs that are no prediction
_TEMPERATURE = ".temperature.json"
_CURE = "copy the model folder again, whole"


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


def _file(name: str) -> str:
    if Path(name).name != name:
        raise ValueError("must name a file of the folder")
    return _line(name)


def _config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    if missing := {"method", "dataset", "seed"} - config.keys():
        raise ValueError(f"lacks {missing}")
    return config


_Line = Annotated[str, _line]
_Config = Annotated[Mapping[str, bool | int | float | str], _config]
_Share = Annotated[float, between(0, 1)]
_Width = Annotated[int, between(1, 2**62)]


@dataclass(frozen=True, kw_only=True)
class About:
    """The run and data that the weights of a folder belong to; ``model.json``.

    Parameters
    ----------
    format : int
        Of the file.
    experiment : str
        Name of the run's results folder.
    config : mapping
        The run's complete config, without folders.
    kind : str
        What the outputs say: a key of ``LABEL_KINDS``, or "embedding".
    metric : str
        What results are stated in.
    rounds : int
        After which the weights are.
    outputs : list of str
        Names of classes, of tasks, or of the columns of an embedding.
    columns : str
        What the features are, in words; "" where the config says all.
    architecture : mapping, optional
        Its widths ``num_features`` and ``num_classes``; None if the weights cannot
        predict by themselves.
    why_not : str
        Why they cannot.
    schema : str
        Text of ``schema.toml``; "" without one.
    models : mapping
        The clients that have each model, by its name.
    scores : mapping
        Of the run; at a site its own.
    lineage : list of mapping
        What the run began from, and that before, newest first.
    rarest : str
        Class of fewest training labels; "" if that is not known.
    thresholds : mapping
        Of each model, the probability from which an item is called by the name of one
        output; the median of its clients' if several have it. Validation items chose.
    by_precision : bool
        It is so rare that average precision, and not the metric, chose rounds.
    """

    OPEN: ClassVar[bool] = True

    format: Literal[1] = 1
    experiment: _Line
    config: _Config
    kind: Annotated[str, one_of(*_WHAT)]
    metric: Annotated[str, one_of("accuracy", "roc-auc", "mae")]
    rounds: int
    outputs: list[_Line]
    columns: _Line
    architecture: Mapping[str, _Width] | None
    why_not: _Line
    models: Mapping[Annotated[str, _file], list[int]]
    schema: str = ""
    scores: Mapping[str, Any] = field(default_factory=dict)
    lineage: list[Mapping[str, bool | int | float | str]] = field(default_factory=list)
    versions: Mapping[str, Any] = field(default_factory=dict)
    rarest: _Line = ""
    thresholds: Mapping[str, Mapping[str, _Share]] = field(default_factory=dict)
    by_precision: bool = False


@dataclass(frozen=True, kw_only=True)
class Temperatures:
    """By what logits are divided: one number, or one for each target; empty: 1.

    No hash of the folder vouches for the file: who has the folder fits it by own data.
    """

    temperatures: tuple[Annotated[float, between(0.01, 100)], ...] = ()
    notes: list[_Line] = field(default_factory=list)
    weights: str = ""  # SHA-256 of the file of weights that they were fitted for

    def write(self, path: Path, name: str) -> None:
        """Write beside the model of this name; StorageError if that cannot be."""
        facts = asdict(self) | {"weights": sha256_of(path / f"{name}.safetensors")}
        write_json(path / f"{name}{_TEMPERATURE}", facts)

    @classmethod
    def read(cls, path: Path, name: str, about: About) -> Temperatures:
        """Read what was written; none without a file. DataError if it is damaged."""
        file = path / f"{name}{_TEMPERATURE}"
        try:
            if not file.is_file():
                return cls()
            found: Temperatures = checked(cls, json.loads(file.read_bytes()))
            count = len(about.outputs) if about.kind == "binary" else 1
            if len(found.temperatures) != count:
                raise ValueError(f"has {len(found.temperatures)}, expected {count}")
            if found.weights != sha256_of(path / f"{name}.safetensors"):
                raise ValueError("it was fitted for other weights")
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{file} cannot be read: {error}; delete it, then fit anew"
                " by --trained-on"
            ) from error
        return found


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Empty the keys that name folders and files of one machine."""
    return {k: "" if k in PLACES else v for k, v in config.items()}


def write_folder(path: Path, models: Mapping[str, Arrays], about: About) -> None:
    """Write weights, ``model.json``, the card and the hashes, which come last.

    Weights that an earlier end of the run has left, and this one has not, go.

    Raises
    ------
    StorageError
    """
    remove(path / SUMS)  # the folder is none until it is whole
    for name in names_in(path, f"*{_TEMPERATURE}"):  # of other weights
        remove(path / name)
    for name in names_in(path, "*.safetensors"):
        if name.removesuffix(".safetensors") not in models:
            remove(path / name)
    for name, arrays in models.items():
        write_arrays(path / f"{name}.safetensors", arrays)
    facts = {k: v for k, v in asdict(about).items() if k != "schema"}
    write_json(path / ABOUT, facts)
    write_text(path / CARD, write_card(about))
    names = [*(f"{name}.safetensors" for name in models), ABOUT, CARD]
    if about.schema:
        write_text(path / SCHEMA, about.schema)
        names.append(SCHEMA)
    if file := _plugin_file(about):
        write_text(path / METHOD, file.read_text(encoding="utf-8"))
        names.append(METHOD)
    lines = [f"{sha256_of(path / name)}  {name}\n" for name in sorted(names)]
    write_text(path / SUMS, "".join(lines))


def read_about(path: Path) -> About:
    """Read ``model.json``, checked against its hash.

    Raises
    ------
    DataError
        It is no model folder, was changed, or is of another version.
    """
    try:
        is_model = (path / ABOUT).is_file()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error}; let this user read the folder"
        ) from error
    if not is_model:
        raise DataError(
            f"{path} is not a model folder: it has no {ABOUT}; give models/ of the"
            " results folder of a run that has completed, or"
            " <state-dir>/<experiment>/client-<id>/model of a site"
        )
    _check(path, ABOUT)
    try:
        # The folder may be a stranger's, and its hashes with it.
        about: About = checked(About, json.loads((path / ABOUT).read_bytes()))
        if not (path / SCHEMA).is_file():
            return about
        _check(path, SCHEMA)
        return replace(about, schema=(path / SCHEMA).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why: object = error
        if isinstance(error, Wrong) and error.place:
            why = f"it has a wrong value of {error.place[0]}, which {error.must}"
        raise DataError(
            f"{path / ABOUT} cannot be read: {why}; use the version of this project"
            " that wrote it"
        ) from error


def read_weights(
    path: Path, about: About, name: str
) -> tuple[str, dict[str, NDArray[Any]]]:
    """Read name and tensors of one model, checked against their hash.

    With the name "" it is the only one that is here.

    Raises
    ------
    DataError
        There is no such model here, or its file was changed.
    """
    here = [n for n in about.models if (path / f"{n}.safetensors").is_file()]
    if not name and len(here) == 1:
        name = here[0]
    if name not in here:
        raise DataError(
            f"{path} has the models {', '.join(here) or '(none)'}, got"
            f" {name or 'no name'}; choose one of them by --model NAME"
        )
    _check(path, f"{name}.safetensors")
    return name, read_arrays(path / f"{name}.safetensors", "model", _CURE)[0]


def _check(path: Path, name: str) -> None:
    """Compare a file with its hash."""
    try:
        lines = (path / SUMS).read_text(encoding="utf-8").splitlines()
        sums = {n: h for h, _, n in (line.partition("  ") for line in lines)}
        found = sha256_of(path / name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path / SUMS} cannot be read: {error}; {_CURE}") from error
    if sums.get(name) != found:
        raise DataError(
            f"{path / name} is not the file that {SUMS} names: its SHA-256 is"
            f" {found[:12]}..., not {sums.get(name, 'listed')[:12]}; {_CURE}"
        )
