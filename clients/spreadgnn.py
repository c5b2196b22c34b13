"""Client side of SpreadGNN: mixing, local training with the task regulariser, Omega.

He et al. 2021, arXiv:2106.02743; our spec, Sec. 2.5. In the message of round t come the
letters of the last mixing round: the client mixes, is measured, trains, renews Omega,
and where t mixes sends letters of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from logging import WARNING
from typing import Any, final

import numpy as np
import torch
from flwr.common.logger import log
from torch import Tensor

from fedgraph_flwr.config import Settings
from fedgraph_flwr.errors import WireError
from fedgraph_flwr.methods.spreadgnn import (
    ALL,
    PUBLIC_KEY,
    SILENT,
    TO,
    UNUSABLE,
    SpreadGNNParams,
    is_mixing_round,
)
from fedgraph_flwr.peers.mixing import Peer, check_layout, mix, mix_rows, mixing_row
from fedgraph_flwr.wire import NamedArrays

from .base import Array, Config, Metrics
from .graphs.batching import Batch
from .losses.task_covariance import covariance_record, precision, trace_penalty
from .multitask_gnn import MultiTaskGNNClient
from .peers.letters import Letter
from .peers.mailbox import Mailbox
from .peers.neighbourhood import Neighbourhood
from .peers.rounds_done import RoundsDone
from .peers.sealing import KeyRing
from .store import ClientStore

HEAD = "head."  # prefix of the tensors with one row per task


@final
class SpreadGNNClient(MultiTaskGNNClient):
    """Keeps its model, optimiser, Omega and what it knows of neighbours on its disk."""

    SENDS_UPDATES = False
    EXTRA_UPLINK = (TO + ALL,)  # sealed: one for each neighbour instead
    MEASURES_TRAINED = True  # before mixing; "post_aggregation" is after it

    @classmethod
    def introduction(cls, params: Settings, store: ClientStore) -> dict[str, str]:
        """Tell the public key, where letters are sealed."""
        assert isinstance(params, SpreadGNNParams)
        if not params.seal:
            return {}
        ring = KeyRing(store.folder, client_id=store.client_id)
        return {PUBLIC_KEY: ring.public_key}

    # Receiving ----------------------------------------------------------------------

    def _missing_state(
        self,
        server_round: int,
        parameters: list[Array],  # noqa: ARG002
    ) -> dict[str, Tensor]:
        """Nothing stored: normal before the client's first round.

        Raises
        ------
        WireError
            A sealed client has done earlier rounds. Begun afresh it would have
            forgotten which letters it saw, and take old ones.
        """
        folder = self.job.store.folder
        earlier = [r for r in RoundsDone(folder).rounds() if r < server_round]
        if earlier and self._params().seal:
            raise WireError(
                f"client {self.job.client_id} is asked for round {server_round} and has"
                f" done round {earlier[-1]}, but no longer has its state from before:"
                f" refused, as old letters could be replayed to it; restore {folder},"
                " resume from the newest checkpoint, or start a new run"
            )
        if server_round > 1:
            log(
                WARNING,
                "no private state of client %d before round %d in %s: it begins with"
                " the common start",
                self.job.client_id,
                server_round,
                folder,
            )
        return {}

    def _load(
        self, server_round: int, parameters: list[Array]
    ) -> torch.optim.Optimizer:
        if parameters:
            raise WireError(
                f"client {self.job.client_id} got a model from the server: refused, as"
                " it takes models from its neighbours alone; do not trust that server"
            )
        optimizer = super()._load(server_round, parameters)
        store = self.job.store
        self.mailbox = Mailbox(
            store.experiment,
            self.job.client_id,
            store.folder,
            is_sealed=self._params().seal,
            notes=self.notes,
            stored=self.stored,
            trusted=self.trusted,
        )
        self.around = Neighbourhood.from_tensors(
            self.job.client_id,
            self.data.partition.owned_tasks,
            self.stored,
        )
        own = self._mixed_tensors()
        letters = self.mailbox.read(
            self.extra_downlink, server_round, functools.partial(self._check, own)
        )
        self._mix(own, letters)
        self.silent = self.mailbox.silent(server_round, self._params().period)
        self.around.learn(letters)
        self.around.forget(self.silent)
        RoundsDone(store.folder).forget_before(min(store.rounds(), default=0))
        return optimizer

    def _check(self, own: NamedArrays, sender: int, contents: Letter) -> None:
        """Raise WireError if a neighbour's letter does not fit this client's model."""
        num_tasks, width = self.model.head.weight.shape
        contents.check(sender, num_tasks=num_tasks, width=width)
        check_layout(sender, contents.tensors, own)

    @torch.no_grad()
    def _mix(self, own: NamedArrays, letters: Mapping[int, Letter]) -> None:
        """X_k <- sum_j M_kj X_j over those whose letters came (Eq. 12)."""
        if not letters:
            return
        me, params = self.job.client_id, self._params()
        check_layout(me, own, own)
        models = {me: own}
        models |= {j: contents.tensors for j, contents in letters.items()}
        peers = {me: self._peer()} | {j: c.peer for j, c in letters.items()}
        row = mixing_row(params.weights, me, peers, given=self.mailbox.given)
        mixed = mix(models, row, me)
        if params.head_sync == "owners":
            owners = {me: self.data.partition.owned_tasks}
            owners |= {j: tuple(c.task_ids.tolist()) for j, c in letters.items()}
            names = [n for n in mixed if n.startswith(HEAD)]
            mixed |= mix_rows(models, row, owners, names)
        named = self.tensors()
        for name, array in mixed.items():
            named[name].copy_(torch.from_numpy(np.array(array)))

    def _mixed_tensors(self) -> NamedArrays:
        """All tensors that are mixed, as they are now."""
        keeps_head = self._params().head_sync == "none"
        return {
            n: t.cpu().numpy()
            for n, t in self._detached(list(self.tensors())).items()
            if not (keeps_head and n.startswith(HEAD))
        }

    def _peer(self) -> Peer:
        return Peer(
            num_neighbours=len(self.mailbox.neighbours),
            num_examples=len(self.data.partition.train),
        )

    # Training -----------------------------------------------------------------------

    @property
    def _regularises(self) -> bool:
        """Not in round 1: no neighbour's head is known yet (our spec Sec. 2.5)."""
        return self.server_round > 1

    def begin_epoch(self, epoch: int) -> None:  # noqa: ARG002
        """Invert Omega as it is now."""
        self._invert()

    def _invert(self) -> None:
        omega = self.around.covariance().omega
        self.inverse = precision(omega).to(self.job.device)
        self.heads = self.around.stack(self.model.head.weight.detach())

    def loss(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Masked loss + lambda tr(Phi^T Omega^-1 Phi), Eq. (7)."""
        loss = super().loss(batch, generator)
        weight = self._params().task_reg
        if not weight or not self._regularises:
            return loss
        phi = self.around.with_own(self.heads, self.model.head.weight)
        # In doubles: Omega may be near-singular, and Omega^-1 Phi cancels.
        return loss + weight * trace_penalty(phi.double(), self.inverse).to(loss.dtype)

    def end_step(self) -> None:
        """Renew Omega after every step, where that is asked for."""
        if self._params().omega_every == "step" and self._regularises:
            self._renew()
            self._invert()

    def end_epoch(self, epoch: int) -> None:  # noqa: ARG002
        """Renew Omega after every epoch."""
        if self._params().omega_every == "epoch" and self._regularises:
            self._renew()

    def _renew(self) -> None:
        eta = self._params().omega_eta
        self.around.renew(self.model.head.weight.detach(), eta=eta)

    # Sending ------------------------------------------------------------------------

    def fit(
        self, parameters: list[Array], config: Config
    ) -> tuple[list[Array], int, Metrics]:
        """See base class; says of which neighbours it has no usable mail."""
        arrays, num_examples, metrics = super().fit(parameters, config)
        return arrays, num_examples, metrics | self._complaints()

    def _complaints(self) -> Metrics:
        silent = {f"{SILENT}{j}": rounds for j, rounds in self.silent.items()}
        return {**silent, **{f"{UNUSABLE}{j}": 1 for j in self.mailbox.unusable}}

    def uplink(self, trained: dict[str, Tensor]) -> list[Array]:  # noqa: ARG002
        """Nothing for the server: what neighbours get is in letters."""
        self._keep_omega()
        return []

    def extra_uplink(self) -> NamedArrays:
        """Letters for the neighbours, where this round mixes."""
        if not is_mixing_round(self.server_round, self._params().period):
            return {}
        contents = self._contents()
        _check_finite(self.job.client_id, contents.tensors)
        return self.mailbox.write(contents, self.server_round)

    def _contents(self) -> Letter:
        own = self.data.partition.owned_tasks
        covariance = self.around.covariance()
        rows = self.model.head.weight.detach()[list(own)]
        return Letter(
            tensors=self._mixed_tensors(),
            task_ids=np.array(own, np.int64),
            head_rows=rows.cpu().numpy(),
            omega_task_ids=np.array(covariance.task_ids, np.int64),
            omega=covariance.omega.numpy().astype(np.float32),
            peer=self._peer(),
        )

    def _keep_omega(self) -> None:
        """Hand over Omega to be drawn; from a blind relay keep it at this site."""
        covariance = self.around.covariance()
        if not self._params().seal:
            self.evaluation = covariance_record(covariance)
            return
        partition = self.data.partition
        self.job.store.keep(
            f"omega-{self.server_round:06d}.npz",
            {
                "omega": covariance.omega.numpy(),
                "task_ids": np.array(covariance.task_ids, np.int64),
                "own_ids": np.array(partition.owned_tasks, np.int64),
                "learned_from": self.around.teachers(),
                "tasks": np.array(partition.tasks),
            },
        )

    def private_keys(self) -> list[str]:
        """Every tensor."""
        return list(self.tensors())

    def extra_state(self) -> dict[str, Tensor]:
        """Omega, neighbours' heads and Omegas, and rounds of their last letters."""
        return {**self.around.to_tensors(), **self.mailbox.state()}

    def evaluate(
        self, parameters: list[Array], config: Config
    ) -> tuple[float, int, Metrics]:
        """See base class; the mixed model stays at this site."""
        loss, num_examples, metrics = super().evaluate(parameters, config)
        tensors: Mapping[str, Any] = self._detached(list(self.tensors()))
        self.job.store.keep(
            "model.npz", {n: t.cpu().numpy() for n, t in tensors.items()}
        )
        return loss, num_examples, metrics | self._complaints()

    def _params(self) -> SpreadGNNParams:
        assert isinstance(self.job.params, SpreadGNNParams)
        return self.job.params


def _check_finite(client_id: int, tensors: NamedArrays) -> None:
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise WireError(
                f"client {client_id} sends no letter: array {name!r} of its model holds"
                " NaN or infinity; lower the learning rate or look at its data"
            )
