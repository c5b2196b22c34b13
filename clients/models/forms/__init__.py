"""Models that predict: what each is built from, and how it reads a client's items.

Clients build their models here, and so does whoever loads a trained model from a file:
nothing in this room needs Flower. Forms are imported when they are used, so that no
client loads what others alone need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph_flwr.data import DiffusionSpec, GraphPartition
from fedgraph_flwr.errors import DataError, unknown_name
from fedgraph_flwr.wording import shortened

from ...graphs.batching import ClientData

# Module of this room that has a form of that name in ``FORMS``.
MODULES: Mapping[str, str] = {
    "gin": "whole_graphs",
    "infograph": "embedders",
    "mvgrl": "embedders",
    "weighted-gin": "embedders",
    "gcn": "nodes",
    "graphsage": "nodes",
    "masked-gcn": "nodes",
    "star": "nodes",
    "adafgl": "corrected",
    "multi-task": "molecules",
    "weighted": "weighted",
}
EMBEDDERS = ("infograph", "mvgrl", "weighted-gin")  # outputs are embeddings


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model without its tensors.

    Parameters
    ----------
    form : str
        Key of ``MODULES``.
    num_features, num_classes : int
        Widths of input and output.
    hidden_dim, num_layers : int
    dropout : float
    options : mapping
        What only this form is built from: texts and numbers.
    training_only : tuple of str
        Tensors that a client's model has besides, and that no prediction reads.
    """

    form: str
    num_features: int
    num_classes: int
    hidden_dim: int
    num_layers: int
    dropout: float
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    training_only: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for :meth:`from_json`."""
        plain = {"options": dict(self.options), "training_only": [*self.training_only]}
        return {**asdict(self), **plain}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Architecture:
        """Read what :meth:`to_json` wrote.

        Raises
        ------
        DataError
            It is no such table.
        """
        try:
            found = cls(**{**values, "training_only": (*values["training_only"],)})
            found._check_types()
            return found
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"the model's architecture cannot be read: {error}; use the version of"
                " this project that wrote the model"
            ) from error

    def _check_types(self) -> None:
        widths = (self.num_features, self.num_classes, self.hidden_dim, self.num_layers)
        if not all(type(n) is int and n > 0 for n in widths):
            raise ValueError(f"its widths are {shortened(widths)}")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout <= 1:
            raise ValueError(f"its dropout is {shortened(self.dropout)}")
        if not isinstance(self.options, dict):
            raise ValueError("its options are not a table")
        texts = (self.form, *self.training_only, *self.options)
        is_plain = all(isinstance(v, str | int | float) for v in self.options.values())
        if not is_plain or not all(isinstance(text, str) for text in texts):
            raise ValueError("its form, options or tensors have no plain names")

    def _check_layers(self, tensors: Mapping[str, Tensor]) -> None:
        if self.num_layers > len(tensors):
            raise DataError(
                f"the model has {self.num_layers} layers, but {len(tensors)} tensors;"
                " take weights and model.json from one and the same model folder"
            )

    def build(
        self, generator: torch.Generator, private: torch.Generator | None = None
    ) -> Any:
        """Make the model, its tensors drawn from ``generator``.

        ``private`` draws those that a form with private layers never shares.
        """
        return self._form().make(self, generator, private or generator)

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> nn.Module:
        """Make the model with these tensors, ready to predict.

        Raises
        ------
        DataError
            Names or shapes are not those of the model.
        """
        self._check_layers(tensors)
        try:
            with torch.device("meta"):  # shapes alone, whatever sizes are asked for
                named = self.build(torch.Generator()).state_dict()
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            raise DataError(
                f"the model cannot be built: {error}; take weights and model.json from"
                " one and the same model folder"
            ) from error
        tensors = {n: t for n, t in tensors.items() if n not in self.training_only}
        given = {n: tuple(t.shape) for n, t in tensors.items()}
        wanted = {n: tuple(t.shape) for n, t in named.items()}
        if given != wanted:
            odd = sorted(n for n in given | wanted if given.get(n) != wanted.get(n))
            raise DataError(
                "tensors are not those of the model: "
                + "; ".join(f"{n} {given.get(n)}, not {wanted.get(n)}" for n in odd[:3])
                + "; take weights and model.json from one and the same model folder"
            )
        model: nn.Module = self.build(torch.Generator())
        model.load_state_dict(dict(tensors))
        return model.to(device).eval()

    def collate(self, partition: GraphPartition, device: torch.device) -> ClientData:
        """Collate a client's data into the input of this form of model."""
        return self._form().data.collate(partition, device)

    @torch.no_grad()
    def outputs(self, model: nn.Module, data: ClientData) -> Tensor:
        """Predict for the validation items, then for the test items.

        Returns
        -------
        float32 tensor, shape (num_val + num_test, num_classes)
            Logits, or the numbers that a regression predicts.
        """
        return self._form().outputs(model, data, self.options)

    def diffusion(self) -> DiffusionSpec | None:
        """Give the second view that the model reads; None if it reads none."""
        view = self._form().view
        return view(self.options) if view else None

    def shape(self) -> dict[str, Any]:
        """Arguments that most models take."""
        return {
            "hidden_dim": self.hidden_dim,
            "num_layers": self.num_layers,
            "dropout": self.dropout,
        }

    def _form(self) -> Form:
        if self.form not in MODULES:
            cure = "Use the version of this project that wrote the model."
            raise DataError(unknown_name("form of model", self.form, MODULES, cure))
        module = import_module(f"{__name__}.{MODULES[self.form]}")
        form: Form = module.FORMS[self.form]
        return form


Generator = torch.Generator


@dataclass(frozen=True)
class Form:
    """How models of one kind are built, what they read, and what they predict.

    ``view`` reads a model's options: the second view of graphs that it predicts by.
    """

    make: Callable[[Architecture, Generator, Generator], nn.Module]
    data: type[ClientData]
    outputs: Callable[[Any, Any, Mapping[str, Any]], Tensor]
    view: Callable[[Mapping[str, Any]], DiffusionSpec] | None = None
