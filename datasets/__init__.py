"""Data sets by name, and the part of one that a client holds.

This package deliberately has the name of Hugging Face's ``datasets``; it is imported
from the application root, which comes first on the path.
"""

from .cache import cache_root, describe_source
from .catalog import (
    DATASETS,
    DatasetInfo,
    find_dataset,
    has_own_graphs,
    has_schema,
    is_cut,
    is_downloaded,
    is_one_set,
    is_published,
    is_users,
    kind_of,
    label_kind,
    list_unread,
    reads_files,
    tells_class_sizes,
)
from .diffusion import load_diffusion
from .molecules import SMILES_CSV
from .own.inputs import column_names, molecule_at
from .own.load import count_clients, list_faults, name_items, read_schema_text
from .own.new_items import NewItems, load_new
from .partition import check_hosted, check_settings, load_partition
from .poisoning import poison, triggered_test
from .tabular.encode import count_rows
from .tabular.schema_file import read_schema
from .target_scale import target_scales

__all__ = [
    "DATASETS",
    "SMILES_CSV",
    "DatasetInfo",
    "NewItems",
    "cache_root",
    "check_hosted",
    "check_settings",
    "column_names",
    "count_clients",
    "count_rows",
    "describe_source",
    "find_dataset",
    "has_own_graphs",
    "has_schema",
    "is_cut",
    "is_downloaded",
    "is_one_set",
    "is_published",
    "is_users",
    "kind_of",
    "label_kind",
    "list_faults",
    "list_unread",
    "load_diffusion",
    "load_new",
    "load_partition",
    "molecule_at",
    "name_items",
    "poison",
    "read_schema",
    "read_schema_text",
    "reads_files",
    "target_scales",
    "tells_class_sizes",
    "triggered_test",
]
