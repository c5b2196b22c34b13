"""Clients of InfoGraph and MVGRL, which maximise mutual information: FCLG's baselines.

Either may add FedProx's term, MOON's, or both to its own loss.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar, final

import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.config import RunSettings
from fedgraph_flwr.core.data import DiffusionSpec
from fedgraph_flwr.methods.fclg import InfoGraphParams, InfoMaxParams, MVGRLParams
from fedgraph_flwr.methods.moon import TEMPERATURE

from .graphs.batching import Batch, ClientData
from .losses import jsd_loss, pull
from .mixins import ModelContrast
from .models.infograph import InfoGraph
from .models.mvgrl import MVGRL
from .tasks.graph_embedder import EmbeddingClient

M = TypeVar("M", bound=InfoMaxParams)


class InfoMaxClient(ModelContrast[M], EmbeddingClient[M]):
    """JSD loss of nodes against graphs, plus FedProx's and MOON's terms if weighted."""

    @abstractmethod
    def objective(self, batch: Batch) -> Tensor:
        """Mean JSD loss of a batch."""

    @override
    def embed(self, batch: Batch) -> Tensor:
        """Embed by the model in training, without the projections of the loss."""
        return self.represent(self.model, batch)

    @override
    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """JSD loss, plus FedProx's and MOON's terms; nothing here is random."""
        p, received = self.params, self.round.received
        loss = self.objective(batch)
        loss = loss + pull(self.tensors(), received, p.proximal_mu / 2)
        if p.moon_mu:
            u = self.embed(batch)
            loss = loss + p.moon_mu * self.contrast(u, batch, TEMPERATURE)
        return loss

    @override
    def epoch(self, number: int) -> Tensor:
        """For MOON's term: embed all graphs by the two frozen models, once a round."""
        if number == 0 and self.params.moon_mu:
            self.freeze()
        return super().epoch(number)

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """For MOON's term: the model at the end of the round."""
        return self.as_previous() if self.params.moon_mu else {}


@final
class InfoGraphClient(InfoMaxClient[InfoGraphParams]):
    """Mutual information of nodes and their graph."""

    MODEL = InfoGraph
    model: InfoGraph

    @override
    @classmethod
    def predict(
        cls, model: InfoGraph, data: ClientData, params: InfoGraphParams
    ) -> Tensor:
        return torch.cat([model.embed(batch) for batch in data.evaluation])

    @override
    def represent(self, model: InfoGraph, batch: Batch) -> Tensor:
        """Pooled layers; BatchNorm uses its running values in every model."""
        return model.embed(batch)

    @override
    def objective(self, batch: Batch) -> Tensor:
        return jsd_loss(*self.model.project(batch), batch.graph_of_node)


@final
class MVGRLClient(InfoMaxClient[MVGRLParams]):
    """Mutual information of nodes of one view and graphs of the other.

    Differs from the authors' ``graph/train.py``, which keeps its layers in a plain
    list, so that they are neither trained nor, here, would be averaged.
    """

    EMBEDS_VIEW = True
    MODEL = MVGRL
    model: MVGRL

    @override
    @classmethod
    def predict(cls, model: MVGRL, data: ClientData, params: MVGRLParams) -> Tensor:
        view = data.view
        assert view is not None
        return torch.cat(
            [model.embed(b, view.batch(b.positions)) for b in data.evaluation]
        )

    @override
    @classmethod
    def width(cls, settings: RunSettings) -> int:
        return settings.hidden_dim

    @override
    @classmethod
    def diffusion(cls, params: MVGRLParams) -> DiffusionSpec:
        """Personalised PageRank."""
        return DiffusionSpec()

    @override
    def represent(self, model: MVGRL, batch: Batch) -> Tensor:
        """Sum of both views' projected graphs."""
        return model.embed(batch, self.second_view(batch))

    @override
    def objective(self, batch: Batch) -> Tensor:
        """Contrast each view's nodes with the other view's graphs."""
        of, view = batch.graph_of_node, self.second_view(batch)
        one, other = self.model.project(batch, view)
        return jsd_loss(*one, of) + jsd_loss(*other, of)
