"""Clients of InfoGraph and MVGRL, which maximise mutual information: FCLG's baselines.

Either may add FedProx's term, MOON's, or both to its own loss.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import RunSettings, Settings
from fedgraph_flwr.data import DiffusionSpec
from fedgraph_flwr.methods.fclg import InfoMaxParams, MVGRLParams

from .base import common_generator
from .graphs.batching import Batch
from .losses.terms import proximal_term
from .mixins import ModelContrast
from .models.infograph import InfoGraph
from .models.mvgrl import MVGRL
from .tasks.graph_embedder import EmbeddingClient


class InfoMaxClient(ModelContrast, EmbeddingClient):
    """Nodes against graphs by the JSD estimator, and the terms that have weight."""

    ENCODER: ClassVar[Callable[..., nn.Module]]
    model: Any

    @classmethod
    def build_model(
        cls,
        settings: RunSettings,
        params: Settings,  # noqa: ARG003
        *,
        num_features: int,
        num_classes: int,  # noqa: ARG003
        client_id: int,  # noqa: ARG003
    ) -> nn.Module:
        """Make encoder and projections, the same for every client."""
        return cls.ENCODER(
            num_features,
            hidden_dim=settings.hidden_dim,
            num_layers=settings.num_layers,
            generator=common_generator(settings),
        )

    @abstractmethod
    def objective(self, batch: Batch) -> Tensor:
        """Mean JSD loss of a batch."""

    def embed(self, batch: Batch) -> Tensor:
        """Embed by the model in training, without the projections of the loss."""
        return self.represent(self.model, batch)

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """JSD loss, plus FedProx's and MOON's terms; nothing here is random."""
        params = self._params()
        loss = self.objective(batch)
        if params.proximal_mu:
            pull = proximal_term(self.tensors(), self.received, params.proximal_mu)
            loss = loss + pull
        if params.moon_mu:
            u, temperature = self.embed(batch), params.moon_temperature
            loss = loss + params.moon_mu * self.contrast(u, batch, temperature)
        return loss

    def begin_epoch(self, epoch: int) -> None:
        """For MOON's term: embed all graphs by the two frozen models, once a round."""
        if epoch == 0 and self._params().moon_mu:
            self.freeze()

    def extra_state(self) -> dict[str, Tensor]:
        """For MOON's term: the model at the end of the round."""
        return self.as_previous() if self._params().moon_mu else {}

    def _params(self) -> InfoMaxParams:
        assert isinstance(self.job.params, InfoMaxParams)
        return self.job.params


@final
class InfoGraphClient(InfoMaxClient):
    """Mutual information of nodes and their graph."""

    ENCODER = InfoGraph

    def represent(self, model: Any, batch: Batch) -> Tensor:
        """Pooled layers; BatchNorm by its running values, for every model alike."""
        return model.embed(batch)  # type: ignore[no-any-return]

    def objective(self, batch: Batch) -> Tensor:
        """See :meth:`InfoGraph.loss`."""
        return self.model.loss(batch)  # type: ignore[no-any-return]


@final
class MVGRLClient(InfoMaxClient):
    """Nodes of one view against graphs of the other.

    Differs from the authors' ``graph/train.py``, which keeps its layers in a plain
    list, so that they are neither trained nor, here, would be averaged.
    """

    ENCODER = MVGRL

    @classmethod
    def diffusion(cls, params: Settings) -> DiffusionSpec:
        """Personalised PageRank."""
        assert isinstance(params, MVGRLParams)
        return DiffusionSpec(
            kind="ppr", alpha=params.ppr_alpha, threshold=params.threshold
        )

    def represent(self, model: Any, batch: Batch) -> Tensor:
        """Sum of both views' projected graphs."""
        return model.embed(batch, self.second_view(batch))  # type: ignore[no-any-return]

    def objective(self, batch: Batch) -> Tensor:
        """See :meth:`MVGRL.loss`."""
        return self.model.loss(batch, self.second_view(batch))  # type: ignore[no-any-return]
