"""What a process keeps of what it has loaded."""

from dataclasses import dataclass

import numpy as np
import torch
import toys

from fedgraph_flwr.core.process import Kept, num_bytes
from fedgraph_flwr.node import serve
from simulations import inline


def visits(limit, keys):
    """Keys that had to be made, in order; each value has 100 bytes."""
    made, kept = [], Kept(limit)
    for key in keys:

        def make(key=key):
            made.append(key)
            return np.full(100, key, np.uint8)

        assert (kept.get(key, make) == key).all()
    return made, kept


def test_what_fits_is_made_once():
    made, kept = visits(300, [0, 1, 2] * 3)

    assert made == [0, 1, 2]
    assert len(kept) == 3


def test_of_a_circle_that_does_not_fit_a_part_is_kept():
    made, kept = visits(300, [0, 1, 2, 3, 4] * 3)

    assert made == [0, 1, 2, 3, 4, 3, 4, 3, 4]
    assert len(kept) == 4  # three, and the last


def test_bytes_are_those_of_arrays_and_tensors_each_once(tmp_path):
    @dataclass
    class Pair:
        one: object
        other: object

    shared = np.zeros(10)
    np.save(tmp_path / "a.npy", shared)
    on_disk = np.load(tmp_path / "a.npy", mmap_mode="r")

    assert num_bytes(Pair(shared, {"a": shared, "b": torch.zeros(3)})) == 80 + 12
    assert num_bytes([on_disk, (None, "text")]) == 0


def test_a_run_keeps_data_of_its_clients_and_forgets_them(tmp_path, toy_data):
    seen = []
    clear = serve.clear_kept

    def cleared():
        seen.append(len(serve.kept_data))
        clear()

    toy_data.setattr(inline, "clear_kept", cleared)
    places = {f"{kind}-dir": str(tmp_path / kind) for kind in ("state", "results")}
    inline.run_inline({**toys.tiny("fedavg"), **places}, num_nodes=1)

    count = toys.resolved().settings.num_clients
    assert seen == [count]
    assert not len(serve.kept_data)
