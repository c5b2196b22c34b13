"""Data that the user of the process may not read."""

from pathlib import Path

import own_files
import pytest
import toys

import datasets
from fedgraph_flwr.core.errors import DataError


@pytest.mark.parametrize("dataset", ["graphs-csv", "smiles-csv"])
@pytest.mark.parametrize("what", ["is_file", "open"])
def test_data_without_permission_have_their_cure(tmp_path, monkeypatch, dataset, what):
    """Of a folder or of a file: nobody is told to save a table in another way."""
    own_files.write(tmp_path)
    (tmp_path / "own.csv").write_text("smiles,toxic\nC,1\n")
    path = tmp_path / "own.csv" if dataset == "smiles-csv" else tmp_path
    settings = toys.run_settings(
        method="fedavg",
        dataset=dataset,
        data_dir=str(path),
        num_clients=1,
        partition="files",
    )

    old = getattr(Path, what)

    def denied(self, *args, **options):
        if self.name in ("nodes.csv", "own.csv"):
            raise PermissionError(13, "Permission denied", str(self))
        return old(self, *args, **options)

    monkeypatch.setattr(Path, what, denied)
    words = f"no permission for {tmp_path}.*by chown or|check its permissions"

    def load():
        datasets.check_hosted(settings, [0])
        datasets.load_partition(settings, 0)

    with pytest.raises(DataError, match=words):
        load()
