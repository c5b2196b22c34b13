"""What a client does if its run puts noise on updates, or a site's data fail it.

A server that chooses the model can make training overflow, or fail, for some label
alone. Neither shows in the reply, but for the time that it took, and both are paid for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import WARNING
from typing import ClassVar, Generic

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from fedgraph_flwr.errors import (
    ConfigError,
    PrivacyBudgetError,
    StorageError,
    WireError,
)
from fedgraph_flwr.wording import visible

from .classic import ClassicClient
from .graphs.batching import ClientData
from .job import Job, P
from .round import Round
from .start import Start
from .tensors import places


class NoisyUpdates(ClassicClient, Generic[P]):
    """Base of :class:`~clients.base.GraphClient`: the privacy of its updates."""

    SENDS_UPDATES: ClassVar[bool] = True
    job: Job[P]
    data: ClientData
    round: Round

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers of the model by name."""

    @abstractmethod
    def private_keys(self) -> list[str]:
        """Names of tensors that stay and persist."""

    @abstractmethod
    def _start_of_model(self) -> Start:
        """Make the model before round 1."""

    def _overflowed(self) -> bool:
        """Whether the model, or its update, holds NaN or infinity."""
        tensors = self.tensors()
        steps = [tensors[n] - w for n, w in self.round.received.items()]
        return not all(bool(t.isfinite().all()) for t in (*tensors.values(), *steps))

    @torch.no_grad()
    def _put_back(self) -> dict[str, Tensor]:
        """Set the model to the start of the round, as if it had not been trained.

        A server that chooses the model can let it overflow for some label. Its update
        is then one of zeros, under noise and paid for, so that nobody sees whether it
        did; and the next round begins with numbers. Return the state from before.
        """
        log(
            WARNING,
            "client %d, round %d: training overflowed, so the noise alone of its update"
            " is sent, and charged; lower learning-rate",
            self.job.client_id,
            self.round.number,
        )
        if self.round.stored:  # read anew, as the optimiser has changed its moments
            stored = self.job.store.load(self.round.after) or {}
            self.round = replace(self.round, stored=stored)
        tensors = self.tensors()
        before = dict(places(self._start_of_model().model))
        for name in self.private_keys():
            there, key = before[name]
            tensors[name].copy_(self.round.stored.get(name, there[key]))
        for name, weight in self.round.received.items():
            tensors[name].copy_(weight)
        private = {name: tensors[name].detach() for name in self.private_keys()}
        return dict(self.round.stored) or private

    def _privatised(self, trained: dict[str, Tensor]) -> dict[str, Tensor]:
        """Clip the update and add noise to it, if the run protects updates."""
        privacy, site = self.job.privacy, self.job.site
        if not privacy.update_clip or not self.SENDS_UPDATES:
            return trained
        received = {n: w.cpu().numpy() for n, w in self.round.received.items()}
        stored = [t.cpu().numpy() for _, t in sorted(self.round.stored.items())]
        inputs = [*received.values(), *stored]
        if site.is_secret:  # a resume may change it, and last digits depend on it
            inputs.append(np.array(self.job.settings.torch_threads))
        noisy = site.noisy_update(
            [trained[n].cpu().numpy() - w for n, w in received.items()],
            self.data.partition,
            server_round=self.round.number,
            inputs=inputs,
        )
        return {
            n: torch.from_numpy(w + step)
            for (n, w), step in zip(received.items(), noisy, strict=True)
        }

    @contextmanager
    def hiding_failure(self) -> Iterator[None]:
        """Go on after a failure on the data of a site, if its updates are noisy.

        A server that chooses the model can make it fail for some label alone, and would
        learn that label past the noise. What was trained until then is sent under
        noise, and charged, as ever.
        """
        try:
            yield
        except (ConfigError, PrivacyBudgetError, StorageError, WireError):
            raise  # of the run, the budget or the disk
        except Exception as error:
            if not (self.job.site.is_secret and self.job.privacy.update_clip):
                raise
            log(
                WARNING,
                "client %d, round %d: goes on without what failed, as the server must"
                " not learn of it: %s: %s",
                self.job.client_id,
                self.round.number,
                type(error).__name__,
                visible(str(error)),
            )

    def spent(self) -> dict[str, float]:
        """Metrics of the privacy spent so far; none in runs without noise."""
        if not self.job.privacy.is_on:
            return {}
        return self.job.site.spent(self.data.partition)
