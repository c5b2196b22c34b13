"""All methods by name, as the files of ``fedgraph_flwr/methods`` declare them.

A file's ``METHOD`` has the file's name, with hyphens; its ``METHODS`` have their own.
Nothing else asks for a method's name.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pkgutil import iter_modules, resolve_name
from typing import TYPE_CHECKING, Any

from . import methods
from .core import plugins
from .core.config import AUTO, RunSettings, Settings
from .core.errors import ConfigError, unknown_name
from .core.method import Client, Method, Named
from .core.tasks import Task

if TYPE_CHECKING:
    from clients.base import GraphClient
    from strategies.base import AbstractGraphStrategy


def _find_methods() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for file in iter_modules(methods.__path__):
        declared = vars(import_module(f"{methods.__name__}.{file.name}"))
        if "METHOD" in declared:
            found[file.name.replace("_", "-")] = declared["METHOD"]
        found |= declared.get("METHODS", {})
    return found


METHODS: Mapping[str, Method] = _find_methods()


@dataclass(frozen=True, kw_only=True)
class MethodOnTask:
    """A method on data of one kind: all that a run of it is made of."""

    params: type[Settings]
    strategy_row: Named
    client_row: Client
    task: Task
    options: Mapping[str, Any]
    distil: Any = ""

    @cached_property
    def strategy(self) -> type[AbstractGraphStrategy]:
        """What runs at the server; it needs Flower, and a trained model none."""
        strategy: type[AbstractGraphStrategy] = load_class(self.strategy_row)
        return strategy

    @cached_property
    def client(self) -> type[GraphClient[Any]]:
        """What runs at a client. The first use imports torch, which takes a second."""
        client: type[GraphClient[Any]] = load_class(self.client_row)
        return client

    @property
    def has_server_model(self) -> bool:
        """Whether clients train one or more common models; not in self-train."""
        return self.strategy.HAS_MODEL

    def make_strategy(
        self, settings: RunSettings, params: Settings, **kwargs: Any
    ) -> AbstractGraphStrategy:
        """Build the strategy."""
        make: Any = self.strategy
        made: AbstractGraphStrategy = make(settings, params, **self.options, **kwargs)
        return made


def on_data(method: Method, label_kind: str, task: str = AUTO) -> MethodOnTask:
    """Return a method on data of a kind, for a task or the first that fits.

    Parameters
    ----------
    label_kind : str
        Key of ``LABEL_KINDS``. If no task fits it, the first is returned, whose
        ``check`` then says what fits.
    task : str
        "auto", or the ``key`` of a task.

    Raises
    ------
    ConfigError
        The method has no client for the task.
    """
    wanted = [t for t in method.clients if task in (AUTO, t.key)]
    if not wanted:
        known = ", ".join(repr(t.key) for t in method.clients)
        raise ConfigError(
            f"task must be 'auto' or one of those that the method can do ({known}),"
            f" got {task!r}; set task in the run config"
        )
    chosen = next((t for t in wanted if t.fits(label_kind)), wanted[0])
    return MethodOnTask(
        params=method.params_of.get(chosen, method.params),
        strategy_row=method.strategy,
        client_row=method.clients[chosen],
        task=chosen.of(label_kind),
        options=method.options,
        distil=method.distil,
    )


def load_class(row: Client) -> Any:
    """Import a class by ``"module:Class"``, or join the last to mixins before it."""
    named: tuple[Any, ...] = row if isinstance(row, tuple) else (row,)
    *mixins, made = (resolve_name(n) if isinstance(n, str) else n for n in named)
    for mixin in mixins:
        made = _joined(mixin, made)
    return made


@cache
def _joined(mixin: Any, base: Any) -> Any:
    made = types.new_class(f"{mixin.__name__}{base.__name__}", (mixin, base))
    made.__module__ = __name__
    return made


def find_method(name: str) -> Method:
    """Look a method up: one of ``METHODS``, or that of a plug-in, ``module:NAME``.

    Raises
    ------
    ConfigError
        There is none of this name, or the plug-in cannot be used.
    """
    if plugins.is_plugin(name):
        found = plugins.load(name, Method)
        _check(name, found)
        return found
    if name not in METHODS:
        cure = (
            "Set method in the run config, or write a plug-in as module:NAME"
            " (docs/your-method.md)."
        )
        raise ConfigError(unknown_name("method", name, METHODS, cure))
    return METHODS[name]


def _check(name: str, method: Method) -> None:
    """Refuse a plug-in with a part that is no class of its kind, or is unfinished."""
    from clients.base import GraphClient

    kinds: list[tuple[str, Client, type]] = [
        (f"client of task {t.key!r}", c, GraphClient) for t, c in method.clients.items()
    ]
    if method.strategy != Method.strategy:  # FedAvg's, which a model needs not
        from strategies.base import AbstractGraphStrategy

        kinds.insert(0, ("strategy", method.strategy, AbstractGraphStrategy))
    for what, row, base in kinds:
        given = load_class(row)
        if not (isinstance(given, type) and issubclass(given, base)):
            raise ConfigError(
                f"{what} of method {name} must be a class derived from"
                f" {base.__name__}, got {given!r}"
            )
        if lacks := ", ".join(sorted(getattr(given, "__abstractmethods__", ()))):
            raise ConfigError(
                f"{what} of method {name}: {given.__name__} lacks {lacks}; write them,"
                " or derive it from a class that has them"
            )
