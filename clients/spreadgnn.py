"""Client side of SpreadGNN: mixing, local training with the task regulariser, Omega.

He et al. 2021, arXiv:2106.02743. In the message of round t come the letters of the last
mixing round: the client mixes, is measured, trains and renews Omega. If t is a mixing
round, it sends letters of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedgraph_flwr.core.errors import WireError
from fedgraph_flwr.core.logs import log
from fedgraph_flwr.core.mixing import (
    Peer,
    check_entries,
    check_layout,
    mix,
    mix_rows,
    mixing_row,
)
from fedgraph_flwr.core.wire import NamedArrays, Parcel, join, select
from fedgraph_flwr.methods.fedavg import SHARED
from fedgraph_flwr.methods.spreadgnn import (
    FROM,
    OMEGA_ETA,
    PUBLIC_KEY,
    SILENT,
    TO,
    UNUSABLE,
    SpreadGNNParams,
    is_mixing_round,
)

from .classic import Header
from .job import Job, Round
from .letters import Letter, describe
from .models.sage_gat import MultiTaskGNN
from .multitask_gnn import MultiTaskGNNClient
from .spreadgnn_mail import Mailbox, Neighbourhood
from .spreadgnn_rounds import RoundsDone, begun_before
from .store import ClientStore
from .task_covariance import covariance_record, precision, trace_penalty
from .training import to_arrays

HEAD = "head."  # prefix of the tensors with one row per task


@dataclass(frozen=True, kw_only=True)
class PeerRound(Round):
    """A round of a client that learns from its neighbours.

    Parameters
    ----------
    mailbox : Mailbox
        Has read the letters that came.
    around : Neighbourhood
        What neighbours wrote, in these letters or before.
    silent : dict of int to int
        Neighbours without usable mail for long: mixing rounds since the last.
    """

    mailbox: Mailbox
    around: Neighbourhood
    silent: Mapping[int, int]


@final
class SpreadGNNClient(MultiTaskGNNClient[SpreadGNNParams]):
    """Keeps its model, optimiser, Omega and what it knows of neighbours on its disk."""

    TAKES_ENCODER = False
    model: MultiTaskGNN
    SENDS_UPDATES = False
    MEASURES_TRAINED = True  # before mixing; "post_aggregation" is after it
    round: PeerRound

    def __init__(self, job: Job[SpreadGNNParams]) -> None:
        super().__init__(job)
        self.heads = self.inverse = torch.empty(0)  # Phi and Omega^-1 of this epoch

    @override
    @classmethod
    def introduction(
        cls, params: SpreadGNNParams, store: ClientStore
    ) -> dict[str, str]:
        """Tell the public key, if letters are sealed."""
        if not params.seal:
            return {}
        from .sealing import KeyRing  # here: what predicts needs no cryptography

        ring = KeyRing(store.folder, client_id=store.client_id)
        return {PUBLIC_KEY: ring.public_key}

    @override
    @classmethod
    def remark(cls, received: NamedArrays, sent: NamedArrays) -> str:
        """Say of the letters that came and go whether they are sealed."""
        came, go = (
            describe(a.tobytes() for a in select(prefix, arrays).values())
            for prefix, arrays in ((FROM, received), (TO, sent))
        )
        return f"mail: {came} in, {go} out"

    # Receiving ----------------------------------------------------------------------

    @override
    def goes_on_from(self, number: int, known: int) -> int:
        """Last round done, heard of or not: to go back would be to take old letters.

        Raises
        ------
        WireError
            A run did it that the server has left, and this one has not repeated it.
        """
        store = self.job.store
        last, left = store.newest(number)
        if left:
            these = f"WHERE client = {self.job.client_id} AND round >= {last}"
            again = f"DELETE FROM states {these}; DELETE FROM begun {these}"
            raise WireError(
                f"client {self.job.client_id} has done round {last} in a run that the"
                " server has left, and no other since: refused, as it would take old"
                f" letters again. If that is meant, run {store.database.command(again)}"
            )
        return max(known, last)

    @override
    def without_state(self, number: int) -> None:
        """Begin with the common start, as every client does in its first round.

        Raises
        ------
        WireError
            A sealed client has done earlier rounds. Begun afresh it would have
            forgotten which letters it saw, and take old ones.
        """
        path = self.job.store.database.path
        earlier = begun_before(self.job.store, number)
        if earlier and self.params.seal:
            raise WireError(
                f"client {self.job.client_id} is asked for round {number} and has"
                f" done round {earlier}, but no longer has its state from before:"
                f" refused, as old letters could be replayed to it; restore {path},"
                " resume from the newest checkpoint, or start a new run"
            )
        if number > 1:
            log(
                WARNING,
                "no private state of client %d before round %d in %s: it begins with"
                " the common start",
                self.job.client_id,
                number,
                path,
            )

    @override
    def load(self, parcel: Parcel, header: Header) -> None:
        """Read a message, mix the models that neighbours wrote, and learn from them.

        Raises
        ------
        WireError
            There is a model from the server; or as the base, and as :class:`Mailbox`.
        """
        if select(SHARED, parcel.arrays):
            raise WireError(
                f"client {self.job.client_id} got a model from the server: refused, as"
                " it takes models from its neighbours alone; do not trust that server"
            )
        super().load(parcel, header)
        begun, store = self.round, self.job.store
        mailbox = Mailbox(
            store.experiment,
            self.job.client_id,
            store.folder,
            is_sealed=self.params.seal,
            notes=begun.facts,
            stored=begun.stored,
            trusted=self.job.trusted,
        )
        around = Neighbourhood.from_tensors(
            self.job.client_id, self.data.partition.owned_tasks, begun.stored
        )
        own, states = self._mixed_tensors(), store.rounds()
        check = functools.partial(self._check, own)
        with store.database.transaction() as db:
            done = RoundsDone(db, store)
            if (last := max(states, default=0)) > begun.number:
                done.note_trained(last)  # its state is dropped with that of this round
            letters = mailbox.read(begun.extras, begun.number, check, done)
            done.forget_before(min(states, default=0))
        self._mix(own, letters, mailbox)
        silent = mailbox.silent(begun.number, self.params.period)
        around.learn(letters)
        around.forget(silent)
        self.round = PeerRound(
            **vars(begun), mailbox=mailbox, around=around, silent=silent
        )

    def _check(self, own: NamedArrays, sender: int, contents: Letter) -> None:
        """Raise WireError if a neighbour's letter does not fit this client's model."""
        num_tasks, width = self.model.head.weight.shape
        contents.check(sender, num_tasks=num_tasks, width=width)
        check_layout(sender, contents.tensors, own)

    @torch.no_grad()
    def _mix(
        self, own: NamedArrays, letters: Mapping[int, Letter], mailbox: Mailbox
    ) -> None:
        """X_k <- sum_j M_kj X_j over the neighbours whose letters came (Eq. 12)."""
        if not letters:
            return
        me, params = self.job.client_id, self.params
        check_layout(me, own, own)
        models = {me: own}
        models |= {j: contents.tensors for j, contents in letters.items()}
        peers = {me: self._peer(mailbox)} | {j: c.peer for j, c in letters.items()}
        row = mixing_row(params.weights, me, peers)
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
        keeps_head = self.params.head_sync == "none"
        return {
            n: t.cpu().numpy()
            for n, t in self._detached(list(self.tensors())).items()
            if not (keeps_head and n.startswith(HEAD))
        }

    def _peer(self, mailbox: Mailbox) -> Peer:
        return Peer(
            num_neighbours=len(mailbox.neighbours),
            num_examples=len(self.data.partition.train),
        )

    # Training -----------------------------------------------------------------------

    @property
    def _regularises(self) -> bool:
        """Whether the penalty applies: not in round 1, which knows no other heads."""
        return self.round.number > 1

    @override
    def epoch(self, number: int) -> Tensor:
        """Invert Omega as it is now, train, renew it."""
        self.invert()
        loss = super().epoch(number)
        if self._regularises:
            self.round.around.renew(self.model.head.weight.detach(), eta=OMEGA_ETA)
        return loss

    def invert(self) -> None:
        """Prepare the penalty of this epoch: Omega^-1, and all heads."""
        omega = self.round.around.covariance().omega
        self.inverse = precision(omega).to(self.job.device)
        self.heads = self.round.around.stack(self.model.head.weight.detach())

    @override
    def penalty(self) -> Tensor:
        """Lambda tr(Phi^T Omega^-1 Phi), Eq. (7)."""
        weight = self.params.task_reg
        if not weight or not self._regularises:
            return super().penalty()
        phi = self.round.around.with_own(self.heads, self.model.head.weight)
        # In doubles: Omega may be near-singular, and Omega^-1 Phi cancels.
        return weight * trace_penalty(phi.double(), self.inverse).to(phi.dtype)

    # Sending ------------------------------------------------------------------------

    @override
    def update(self, trained: dict[str, Tensor]) -> Parcel:
        """Send letters for the neighbours, if this round mixes; no model."""
        kept = Parcel(evaluation=self._hand_over_omega())
        return join(kept, Parcel(arrays=self._letters()), self._complaints())

    def _letters(self) -> NamedArrays:
        if not is_mixing_round(self.round.number, self.params.period):
            return {}
        letter = self._letter()
        me = self.job.client_id
        beside = {"head_rows": letter.head_rows, "omega": letter.omega}
        check_entries(f"client {me} sends no letter", {**letter.tensors, **beside})
        return self.round.mailbox.write(letter, self.round.number)

    def _complaints(self) -> Parcel:
        """Metrics that name the neighbours without usable mail."""
        silent = {f"{SILENT}{j}": count for j, count in self.round.silent.items()}
        unusable = {f"{UNUSABLE}{j}": 1 for j in self.round.mailbox.unusable}
        return Parcel(metrics={**silent, **unusable})

    def _letter(self) -> Letter:
        own = self.data.partition.owned_tasks
        covariance = self.round.around.covariance()
        rows = self.model.head.weight.detach()[list(own)]
        return Letter(
            tensors=self._mixed_tensors(),
            task_ids=np.array(own, np.int64),
            head_rows=rows.cpu().numpy(),
            omega_task_ids=np.array(covariance.task_ids, np.int64),
            omega=covariance.omega.numpy().astype(np.float32),
            peer=self._peer(self.round.mailbox),
        )

    def _hand_over_omega(self) -> NamedArrays:
        """Hand over Omega to be drawn; keep it at this site if the relay is blind."""
        covariance = self.round.around.covariance()
        if not self.params.seal:
            return covariance_record(covariance)
        partition = self.data.partition
        self.job.store.keep_of_round(
            "omega",
            self.round.number,
            {
                "omega": covariance.omega.numpy(),
                "task_ids": np.array(covariance.task_ids, np.int64),
                "own_ids": np.array(partition.owned_tasks, np.int64),
                "learned_from": self.round.around.teachers(),
                "tasks": np.array(partition.tasks),
            },
        )
        return {}

    @override
    def private_keys(self) -> list[str]:
        return list(self.tensors())

    @override
    def extra_state(self) -> dict[str, Tensor]:
        """Omega, neighbours' heads and Omegas, and rounds of their last letters."""
        return {**self.round.around.to_tensors(), **self.round.mailbox.state()}

    @override
    def assess(self, parcel: Parcel, header: Header) -> Parcel:
        """Evaluate the mixed model, which stays at this site."""
        reply = super().assess(parcel, header)
        tensors = to_arrays(self._detached(list(self.tensors())))
        self.job.store.keep("model.npz", tensors)
        return join(reply, self._complaints())
