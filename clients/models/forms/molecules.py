"""Models of several labels per graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...graphs.molecule_data import MoleculeData
from ...graphs.structure import clean_structure
from ..sage_gat import MultiTaskGNN
from . import Architecture, Form, Generator


def _make(a: Architecture, generator: Generator, _: Generator) -> MultiTaskGNN:
    widths = a.num_features, a.num_classes
    encoder = str(a.options["encoder"])
    return MultiTaskGNN(encoder, *widths, **a.shape(), generator=generator)


def _outputs(model: MultiTaskGNN, data: MoleculeData, _: Mapping[str, Any]) -> Tensor:
    pairs = zip(data.evaluation, data.evaluation_nodes, strict=True)
    return torch.cat([model(n, clean_structure(b), None) for b, n in pairs])


FORMS = {"multi-task": Form(_make, MoleculeData, _outputs)}
