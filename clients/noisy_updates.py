"""What a client does if its run puts noise on updates, or a site's data fail it.

A server that chooses the model can make training overflow, or fail, for some label
alone. Neither shows in the reply, but for the time that it took, and both are paid for.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging import WARNING
from typing import ClassVar, Generic

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
from .job import Job, P, Start
from .round import Round
from .tensors import places

_ASKED = "asked-so-far"  # in the state


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
        asked = [digest.numpy() for digest in self._asked().values()]
        noisy = site.noisy_update(
            [trained[n].cpu().numpy() - w for n, w in received.items()],
            self.data.partition,
            server_round=self.round.number,
            inputs=[*received.values(), *stored, *asked],
        )
        return {
            n: torch.from_numpy(w + step)
            for (n, w), step in zip(received.items(), noisy, strict=True)
        }

    def _asked(self) -> dict[str, Tensor]:
        """Digest of all that led to this round beside the data, for noise and state.

        At a site noise has its name too. Of names by states alone a server that asks
        for one round from two states would see by equal noise that these are equal: no
        label has changed anything.
        """
        if not (self.job.site.is_secret and self.job.privacy.update_clip):
            return {}
        before = self.round.stored.get(_ASKED, torch.zeros(0, dtype=torch.uint8))
        digest = hashlib.sha256(before.numpy().tobytes())
        # A resume may change the threads, on which last digits depend.
        digest.update(f"{self.round.number}/{self.job.settings.torch_threads}".encode())
        received = [w.cpu().numpy() for w in self.round.received.values()]
        for array in (*received, *self.round.extras.values()):
            digest.update(f"/{array.dtype}{array.shape}".encode() + array.tobytes())
        return {_ASKED: torch.tensor(list(digest.digest()), dtype=torch.uint8)}

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
