"""Checks at roll call that clients hold parts of one and the same data set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import datasets
from strategies.round_report import ClientInfo

from .core.config import RunSettings
from .core.data import GraphPartition
from .core.errors import ConfigError
from .core.plugins import NAMING_KEYS, PluginSettings
from .core.secure_aggregation import SecureAggregation
from .core.wire import LEFT_OUT, UNUSED, WHOLE
from .core.words import name_clients, shortened

COLUMNS, CLASSES = "columns", "classes"
_MOST_CLASSES, _SHORT = 256, 12
_SHARE_OUT = (
    ", or every client a folder client-<id> below data-dir; to share one data set out,"
    ' set partition to "chunks"'
)
_LOAD = ", or let load of the plug-in give each client other graphs"
_OWN_GRAPHS = (
    '; for graphs of each site\'s own, which then are used whole, set partition="files"'
)


def tell_data(partition: GraphPartition, *, tells_labels: bool) -> dict[str, str]:
    """Describe data for the comparison; ``tells_labels`` adds a checksum of labels.

    Edges are not in it. Texts are bounded.
    """
    graphs = partition.graphs
    names = json.dumps(graphs.classes)
    if len(graphs.classes) > _MOST_CLASSES:
        names = json.dumps([f"{len(graphs.classes)} classes, sha256 {_sha256(names)}"])
    facts = {
        COLUMNS: graphs.columns,
        UNUSED: graphs.unused,
        LEFT_OUT: partition.left_out,
        CLASSES: names if graphs.classes else "",
        WHOLE: partition.whole_sha256 if tells_labels else "",
    }
    return {name: text for name, text in facts.items() if text}


def tell_plugins(plugin: PluginSettings | None) -> dict[str, str]:
    """Give the hashes of plug-ins' sources at this node; empty without plug-ins."""
    if plugin is None:
        return {}
    hashes = {key: getattr(plugin, f"{key}_sha256") for key in NAMING_KEYS}
    return {f"{key}-sha256": found for key, found in hashes.items() if found}


def check_same_plugins(
    plugin: PluginSettings | None, clients: Mapping[int, ClientInfo]
) -> None:
    """Refuse clients whose plug-ins have another source than the server's."""
    for name, ours in tell_plugins(plugin).items():
        for client, info in sorted(clients.items()):
            if (theirs := info.introduced.get(name, "")) != ours:
                raise ConfigError(
                    f"the source of the plug-in ({name}) is {ours[:_SHORT]} at the"
                    f" server and {theirs[:_SHORT] or 'not told'} at client {client}:"
                    " put the module into the project's folder plugins, which travels"
                    " with the run, or install the same version everywhere"
                )


def class_names(client: ClientInfo) -> list[str]:
    """Names of the classes, if a client sent any that are names; else their numbers."""
    try:
        names = json.loads(client.introduced.get(CLASSES, "") or "[]")
    except (ValueError, RecursionError):
        names = []
    are_names = isinstance(names, list) and all(
        isinstance(name, str) and name.isprintable() for name in names
    )
    return name_classes(names if are_names else [], client.num_classes)


def name_classes(names: list[str], num_classes: int) -> list[str]:
    """Give each class a name: those of the files, or its number."""
    numbers = [str(k) for k in range(num_classes)]
    return names if len(names) == num_classes else numbers


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def check_owners(sums: SecureAggregation, clients: Mapping[int, ClientInfo]) -> None:
    """Refuse a sum in which a task's part of the model is made by too few clients."""
    some = clients[min(clients)]
    for number, task in enumerate(some.tasks if sums.on else ()):
        owners = sorted(c for c, i in clients.items() if number in i.task_ids)
        if 0 < len(owners) < sums.least:
            raise ConfigError(
                f"clients {shortened(owners)} alone have labels of task {task!r}, and"
                " their updates of its part of the model would show in the sum"
                f" (secure-aggregation.least is {sums.least}); leave that task out of"
                " csv-label-columns or task-masks, or switch secure-aggregation.on off"
            )


def check_same_data(settings: RunSettings, clients: Mapping[int, ClientInfo]) -> None:
    """Refuse clients that understand different things by the data set of a run.

    One data set is shared out, and clients read different files; graphs are to be each
    client's own, and two clients have the same; classes have different names, or
    columns that enter one common model are not the same.
    """
    own = datasets.has_own_graphs(settings)
    files = {c: i.raw_sha256[:_SHORT] for c, i in clients.items()}
    labels = {c: i.introduced.get(WHOLE, "")[:_SHORT] for c, i in clients.items()}
    if datasets.is_cut(settings):
        for what, found in (("files", files), ("labels of graphs", labels)):
            _check_equal(
                f"checksums of {what}",
                found,
                f"dataset {settings.dataset!r} is one data set, and each client"
                f" takes its part of it (partition {settings.partition!r}): every site"
                " needs the same files" + (_OWN_GRAPHS if own else ""),
            )
    elif own:
        _check_different("labels", labels, _SHARE_OUT)
    else:
        is_plugin = datasets.find_dataset(settings.dataset).own is not None
        _check_different("files", files, _LOAD if is_plugin else "")
    if not datasets.is_one_set(settings):
        return
    classes = {c: i.introduced.get(CLASSES, "") for c, i in clients.items()}
    _check_equal(
        "classes",
        classes,
        "class 0, 1, ... would not mean the same at all clients; give every site the"
        " same set of labels of graphs; leave out graphs of classes that others lack",
    )
    columns = {c: i.introduced.get(COLUMNS, "") for c, i in clients.items()}
    if datasets.has_schema(settings):
        _check_equal(
            "features",
            columns,
            "every site must read its tables by the same schema; give all of them one"
            " schema.toml",
        )
    elif settings.shared_group != "convs":
        _check_equal(
            "features",
            columns,
            f"layers that all share (shared-group {settings.shared_group!r}) read them;"
            " give every site the same labels of nodes and attributes, or set"
            ' shared-group to "convs"',
        )


def _check_equal(what: str, found: Mapping[int, str], why: str) -> None:
    by_value: dict[str, list[int]] = {}
    for client, value in found.items():
        by_value.setdefault(value, []).append(client)
    if len(by_value) > 1:
        each = "; ".join(
            f"{value or 'not told'} ({name_clients(ids)})"
            for value, ids in by_value.items()
        )
        raise ConfigError(f"clients differ in {what}: {each}: {why}")


def _check_different(what: str, found: Mapping[int, str], cure: str) -> None:
    first: dict[str, int] = {}
    for client, value in found.items():
        if value and value in first:
            raise ConfigError(
                f"clients {first[value]} and {client} have the same graphs (checksum of"
                f' {what} {value}), but by partition "files" each has its own; give'
                f" every site a data-path of its own{cure}"
            )
        first[value] = client


def describe_features(clients: Mapping[int, ClientInfo]) -> str:
    """Say what the features of the clients' graphs are; "" if no client said."""
    texts: dict[str, list[int]] = {}
    for client, info in sorted(clients.items()):
        if columns := info.introduced.get(COLUMNS):
            unused = info.introduced.get(UNUSED)
            text = f"{columns}; not used: {unused}" if unused else columns
            texts.setdefault(text, []).append(client)
    if len(texts) == 1:
        return next(iter(texts))
    return " | ".join(
        f"clients {', '.join(map(str, ids))}: {text}" for text, ids in texts.items()
    )


def describe_left_out(clients: Mapping[int, ClientInfo]) -> str:
    """Say which shares of clients' tables are left out; "" if none is."""
    texts = ((c, info.introduced.get(LEFT_OUT)) for c, info in sorted(clients.items()))
    return "; ".join(f"client {c}: {text}" for c, text in texts if text)


def common_columns(clients: Mapping[int, ClientInfo]) -> str:
    """Name the columns that enter a model of all clients; "" if they are not the same.

    What a client does not use of its tables is not in it: that enters no model.
    """
    columns = {info.introduced.get(COLUMNS, "") for info in clients.values()}
    return columns.pop() if len(columns) == 1 else ""
