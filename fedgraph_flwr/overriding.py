"""Whether what a plug-in's classes override can be called as ours, and what it returns.

Our code calls a method of a plug-in with the arguments of the method that it overrides.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .errors import ConfigError, RunFailedError

_OURS = ("clients", "fedgraph_flwr", "strategies")
_MAKE = "__init__"


def check_overrides(
    what: str, given: type, options: Mapping[str, object] | None = None
) -> None:
    """Refuse a class whose methods cannot be called as those that they override.

    Parameters
    ----------
    what : str
        The class in words.
    given : type
    options : mapping, optional
        Further keyword arguments with which it is made.

    Raises
    ------
    ConfigError
    """
    for name, owner, base in _overridden(given):
        more = list(options or ()) if name == _MAKE else []
        own, got = inspect.getattr_static(given, name), getattr(given, name)
        title = f"{what} of a method: {name}() of {owner.__name__}"
        # What is no descriptor is called without an object, too.
        is_bound = _is_of_class(own) or not hasattr(type(own), "__get__")
        if _is_of_class(base) and not is_bound:
            raise ConfigError(
                f"{title} must be a classmethod, as it is called without an object;"
                " write @classmethod above it"
            )
        wanted = _as_called(base, more)
        try:
            # Not that of a function inside, to which a decorator may add arguments.
            found = inspect.signature(got, follow_wrapped=False)
        except (TypeError, ValueError):
            if callable(got):  # compiled: nobody knows what it takes
                continue
            raise ConfigError(
                f"{title} must be a function {_written(wanted)}, got"
                f" {type(own).__name__}; write it so, or leave it out"
            ) from None
        if not is_bound and not inspect.isfunction(got):  # a descriptor of their own
            continue
        if not all(_takes(found, call) for call in _calls(wanted, is_bound)):
            raise ConfigError(
                f"{title} takes {_written(found)}, but is called as"
                f" {_written(wanted, is_bound)}; write it so"
                f"{', or correct options' if more else ''}"
            )


def _overridden(given: type) -> Iterator[tuple[str, type, Any]]:
    """Methods of ours that a class overrides, with the owner, and what ours is.

    And how it is made, whoever says so.
    """
    ours = [k for k in given.__mro__ if k.__module__.partition(".")[0] in _OURS]
    names = {n for k in given.__mro__ if k not in ours for n in vars(k)}
    for name in sorted(n for n in names if not n.startswith("__")):
        owner = next(k for k in given.__mro__ if name in vars(k))
        base = next((vars(k)[name] for k in ours if name in vars(k)), None)
        if owner not in ours and (inspect.isfunction(base) or _is_of_class(base)):
            yield name, owner, base
    owner = next(k for k in given.__mro__ if _MAKE in vars(k))
    # Of ours some pass on what they are given; the first that was written says it.
    yield _MAKE, owner, next(vars(k)[_MAKE] for k in ours[::-1] if _MAKE in vars(k))


def _is_of_class(found: object) -> bool:
    return isinstance(found, classmethod | staticmethod)


def _as_called(base: Any, more: Iterable[str]) -> inspect.Signature:
    """Signature of a method of ours, with ``self`` or ``cls``, and further keywords."""
    p = inspect.Parameter
    function = base.__func__ if _is_of_class(base) else base
    own = inspect.signature(function).parameters.values()
    listed = [x for x in own if x.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if isinstance(base, staticmethod):
        listed.insert(0, p("cls", p.POSITIONAL_ONLY))
    return inspect.Signature([*listed, *(p(n, p.KEYWORD_ONLY) for n in more)])


def _calls(
    wanted: inspect.Signature, is_bound: bool
) -> Iterator[tuple[list[None], dict[str, None]]]:
    """Arguments of a call with all that may be given, and with what must be."""
    p = inspect.Parameter
    for everything in (True, False):
        given = [
            x for x in wanted.parameters.values() if everything or x.default is p.empty
        ]
        places = [
            x for x in given if x.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        named = [x.name for x in given if x.kind is p.KEYWORD_ONLY]
        yield [None] * (len(places) - is_bound), dict.fromkeys(named)


def _takes(found: inspect.Signature, call: tuple[list[None], dict[str, None]]) -> bool:
    try:
        found.bind(*call[0], **call[1])
    except TypeError:
        return False
    return True


def _written(signature: inspect.Signature, is_bound: bool = False) -> str:
    """Write parameters as in a ``def``, without types and defaults."""
    empty = inspect.Parameter.empty
    found = list(signature.parameters.values())[is_bound:]
    return str(
        inspect.Signature([p.replace(annotation=empty, default=empty) for p in found])
    )


def wrong_return(owner: type, name: str, wanted: str, got: object) -> RunFailedError:
    """Make the error about what a method of a plug-in returns.

    Parameters
    ----------
    owner : type
        The plug-in's class.
    name : str
        Of the method.
    wanted : str
        What it must return, in words.
    got : object
    """
    return RunFailedError(
        f"{name}() of {owner.__name__} must return {wanted}, got a"
        f" {type(got).__name__}; mend it"
    )
