"""What checks do to a run: stop its server, fail a client, disturb generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from clients.base import GraphClient
from fedgraph_flwr import plugins
from fedgraph_flwr.results.folder import RunFolder
from fedgraph_flwr.wire import SERVER_ROUND
from strategies.base import AbstractGraphStrategy


class Killed(BaseException):
    """An exception in place of a signal, which no handler catches."""


@contextmanager
def killed_at_checkpoint(
    server_round: int, error: BaseException | None = None
) -> Iterator[None]:
    """Stop the server before it writes a checkpoint; clients are a round further."""
    write = RunFolder.checkpoint

    def stop(self: RunFolder, strategy: AbstractGraphStrategy) -> None:
        if self.so_far.last_round == server_round:
            raise error or Killed
        write(self, strategy)

    def nothing(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    with mock.patch.object(RunFolder, "checkpoint", stop):
        if error is not None:
            yield
            return
        with mock.patch.object(RunFolder, "finish", nothing):  # a killed server's
            yield


@contextmanager
def failing_client(client: int = 1, server_round: int = 2) -> Iterator[None]:
    """Let a client raise when it trains in a round."""
    train = GraphClient.train

    def fail(self: GraphClient[Any], parcel: Any, header: Any) -> Any:
        if (self.job.client_id, header[SERVER_ROUND]) == (client, server_round):
            raise ValueError("disk full")
        return train(self, parcel, header)

    with mock.patch.object(GraphClient, "train", fail):
        yield


def forget(case: str) -> None:
    """Unload the plug-in of a case, as if another process went on."""
    name = case.partition(" ")[0]
    if plugins.is_plugin(name):
        plugins.forget(plugins.split(name)[0])


@contextmanager
def other_global_generators() -> Iterator[list[str]]:
    """Seed all global generators differently; name at the end which were used."""
    touched: list[str] = []
    legacy = np.random.get_state()  # noqa: NPY002
    before = random.getstate(), torch.get_rng_state()
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  the global one is meant
    torch.manual_seed(5)
    put = random.getstate(), _numpy_state(), torch.get_rng_state()
    try:
        yield touched
    finally:
        now = random.getstate(), _numpy_state(), torch.get_rng_state()
        if now[0] != put[0]:
            touched.append("Python's random")
        if now[1] != put[1]:
            touched.append("NumPy")
        if not torch.equal(now[2], put[2]):
            touched.append("torch")
        random.setstate(before[0])
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_rng_state(before[1])


def _numpy_state() -> str:
    return str([np.asarray(part).tolist() for part in np.random.get_state()])  # noqa: NPY002
