"""What a process keeps of what it has loaded."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import toys

from clients.graphs.csr import csr
from fedgraph_flwr.core.process import Kept, memory_share, num_bytes
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


def test_the_last_value_is_kept_though_it_does_not_fit():
    made, _ = visits(10, [0, 0, 1, 1, 0])

    assert made == [0, 1, 0]


def test_cleared_it_is_empty_and_has_room_again():
    _, kept = visits(100, [0])
    kept.clear()

    assert not len(kept)
    kept.get(1, lambda: np.zeros(100, np.uint8))
    assert kept.get(1, list).nbytes == 100


def test_a_failure_is_not_kept():
    kept = Kept(100)
    with pytest.raises(ZeroDivisionError):
        kept.get(0, lambda: 1 / 0)

    assert kept.get(0, lambda: 5) == 5


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


def test_bytes_of_a_client_count_its_graphs_and_its_batches():
    data = toys.row("fedavg").client.DATA.collate(toys.make_partition(), toys.CPU)
    graphs = data.partition.graphs

    size = num_bytes(data)

    least = graphs.edge_index.nbytes + data.graphs.degree.nbytes
    least += sum(b.edge_index.nbytes + b.graph_of_node.nbytes for b in data.evaluation)
    assert least < size < 4 * least  # a matrix of all pairs of nodes would be more


def test_bytes_of_sparse_matrices_leave_out_zeros_and_shared_memory_counts_once():
    n = 1000
    ptr, columns = torch.arange(n + 1), torch.arange(n)
    matrix = csr(ptr, columns, n)
    assert num_bytes([matrix, matrix]) == 8 * (n + 1) + 8 * n + 4 * n
    array = np.zeros(10)
    assert num_bytes([array, torch.from_numpy(array), array[:]]) == 80


def test_a_process_keeps_no_more_than_half_the_memory():
    assert 0 < memory_share() < 2**50


@pytest.mark.parametrize(
    ("clients", "before", "freezes"), [(50, 0, 1), (49, 0, 0), (50, 7, 0)]
)
def test_what_a_process_of_many_clients_has_loaded_is_left_out(
    monkeypatch, clients, before, freezes
):
    """By the garbage collector; once, so that later garbage is found."""
    seen = []
    fake = SimpleNamespace(
        get_freeze_count=lambda: before,
        collect=lambda: seen.append("collect"),
        freeze=lambda: seen.append("freeze"),
    )
    monkeypatch.setattr(serve, "gc", fake)

    serve.settle(range(clients))

    assert seen == ["collect", "freeze"] * freezes


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
