"""Data sets by name, and the part of one that a client holds.

This package deliberately has the name of Hugging Face's ``datasets``; it is imported
from the application root, which comes first on the path.
"""

from .cache import cache_root
from .catalog import (
    DATASETS,
    DatasetInfo,
    find_dataset,
    has_own_graphs,
    is_cut,
    is_one_set,
    label_kind,
    reads_files,
)
from .diffusion import load_diffusion
from .partition import check_settings, load_partition
from .raw import describe_source
from .smiles_csv import check_hosted

__all__ = [
    "DATASETS",
    "DatasetInfo",
    "cache_root",
    "check_hosted",
    "check_settings",
    "describe_source",
    "find_dataset",
    "has_own_graphs",
    "is_cut",
    "is_one_set",
    "label_kind",
    "load_diffusion",
    "load_partition",
    "reads_files",
]
