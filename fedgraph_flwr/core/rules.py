"""What one value of a configuration may be; TOML files that users write."""

from __future__ import annotations

import io
import json
import math
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .seeding import numpy_rng
from .words import shortened

SHARE = r"0?\.\d{1,6}"
LIST = r"\d{1,6}(,\d{1,6})*"


@lru_cache(maxsize=16)  # asked for at every message
def named_clients(
    text: str, num_clients: int, seed: int, *, key: str = "held-out-clients"
) -> frozenset[int]:
    """Read the clients that a setting names, as those held out from training.

    Parameters
    ----------
    text : str
        A share of the clients, rounded to whole clients and drawn from ``seed`` alone;
        or numbers of clients separated by commas; or "" for none.
    seed : int
        The split seed: runs that are compared name the same clients.
    key : str
        The setting; its name is that of the random stream, too.

    Raises
    ------
    ConfigError
        A number is no client's or stands there twice, no client is named, or all are.
    """
    if not text:
        return frozenset()
    if "." in text:
        count = round(float(text) * num_clients)
        rng = numpy_rng(seed, key)
        chosen = [int(c) for c in rng.choice(num_clients, size=count, replace=False)]
    else:
        chosen = [int(part) for part in text.split(",")]
    if len(set(chosen)) < len(chosen) or max(chosen, default=0) >= num_clients:
        raise ConfigError(
            f"{key} must be numbers of clients below {num_clients}, each once, got"
            f" {text!r}; correct it in the run config"
        )
    if not 0 < len(chosen) < num_clients:
        raise ConfigError(
            f"{key} must name at least one client and leave at least one out, got"
            f" {text!r}, which is {len(chosen)} of {num_clients}; change it in the run"
            " config, or leave it out"
        )
    return frozenset(chosen)


Value = bool | int | float | str
# Upper bounds that nobody means to reach, where a machine would fail without them.
MOST = 1e9  # of any other number
MOST_ROUNDS = 999_999  # names of checkpoints have six digits
MOST_CLIENTS = 100_000
MOST_STEPS = 10**9  # epochs in total, graphs of a batch
MOST_STEP = 1000.0  # learning rates
_FANOUTS = r"(all|[1-9]\d{0,5}(,[1-9]\d{0,5})*)?"
_ROUNDS = r"(\d{1,6}(,\d{1,6})*)?"
_TASKS = r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*"
_MASKS = rf"all|exclusive|overlapping|{_TASKS}(;{_TASKS})*"


@dataclass(frozen=True)
class Rule:
    """The values that one configuration field may have.

    Parameters
    ----------
    kind : type
        ``bool``, ``int``, ``float`` or ``str``. An int may stand for a float, a bool
        never for a number.
    low, high : float
        Bounds of a number, inclusive unless ``low_open`` / ``high_open``.
    choices : tuple of str
        Allowed texts; empty allows any.
    auto : bool
        Whether ``"auto"`` may be written instead.
    absolute : bool
        Whether a text, unless empty, must be an absolute path: a run does not start
        in the folder where ``flwr run`` was typed.
    pattern : str
        Regular expression that a text must match as a whole; empty allows any.
    words : str
        The pattern in words.
    """

    kind: type
    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    choices: tuple[str, ...] = ()
    auto: bool = False
    absolute: bool = False
    pattern: str = ""
    words: str = ""

    def describe(self) -> str:
        """Say in words what is allowed."""
        text = self._describe_value()
        return f"{text}, or 'auto'" if self.auto else text

    def _describe_value(self) -> str:
        if self.choices:
            text = "one of " + ", ".join(map(repr, self.choices))
        elif self.kind in (int, float):
            text = {int: "an int", float: "a finite number"}[self.kind]
            if self.low > -math.inf:
                text += f" {'>' if self.low_open else '>='} {self.low:.10g}"
            if self.high < math.inf:
                both = " and" if self.low > -math.inf else ""
                text += f"{both} {'<' if self.high_open else '<='} {self.high:.10g}"
        elif self.absolute:
            text = "an absolute path or empty"
        elif self.pattern:
            text = self.words
        else:
            text = {bool: "true or false", str: "a text"}[self.kind]
        return text

    def allows(self, value: object) -> bool:
        """Whether ``value`` has the exact type and lies in range (NaN never does)."""
        if self.kind is bool:
            return isinstance(value, bool)
        if self.kind is str:
            return (
                isinstance(value, str)
                and (not self.choices or value in self.choices)
                and (not self.absolute or not value or Path(value).is_absolute())
                and (not self.pattern or re.fullmatch(self.pattern, value) is not None)
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind is int and not isinstance(value, int):
            return False
        above = self.low < value if self.low_open else self.low <= value
        below = value < self.high if self.high_open else value <= self.high
        return above and below and math.isfinite(value)


class _ClientChoice(Rule):
    """A text in which a number stands for itself: 0.2 for "0.2", 3 for "3"."""

    def allows(self, value: object) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return super().allows(f"{value:g}" if is_number else value)


def shown(value: object) -> str:
    """Write a value as in Python, cut short if it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of thousands of digits; deep nesting
        return f"a {type(value).__name__} too large to print"
    return shortened(text)


def setting(default: Value, rule: Rule) -> Any:
    """Declare a configuration field with its default and rule."""
    return field(default=default, metadata={"rule": rule})


def number(
    default: float | str,
    low: float = -MOST,
    high: float = MOST,
    *,
    low_open: bool = False,
    high_open: bool = False,
    auto: bool = False,
) -> Any:
    """Declare a float field."""
    return setting(default, Rule(float, low, high, low_open, high_open, (), auto))


def integer(default: int | str, low: int, high: int, *, auto: bool = False) -> Any:
    """Declare an int field."""
    return setting(default, Rule(int, low, high, auto=auto))


def choice(default: str, *choices: str, auto: bool = False) -> Any:
    """Declare a text field with a closed list of values."""
    return setting(default, Rule(str, choices=choices, auto=auto))


def text(default: str) -> Any:
    """Declare a free text field."""
    return setting(default, Rule(str))


def path(default: str) -> Any:
    """Declare a path field: absolute, or empty for "not set"."""
    return setting(default, Rule(str, absolute=True))


def round_list(default: str) -> Any:
    """Declare a field that lists rounds, e.g. ``"0,5,10"``."""
    words = "round numbers separated by commas, or empty"
    return setting(default, Rule(str, pattern=_ROUNDS, words=words))


def fanouts(default: str) -> Any:
    """Declare a field that says how many neighbours are drawn at each layer."""
    words = "'all', a number, or a number for each layer as in '15,10', or empty"
    return setting(default, Rule(str, pattern=_FANOUTS, words=words))


def client_choice(default: str) -> Any:
    """Declare a field that names clients, or a share of them."""
    words = (
        "a share of the clients such as '0.2', numbers of clients separated by commas,"
        " or empty"
    )
    pattern = f"({SHARE}|{LIST})?"
    return setting(default, _ClientChoice(str, pattern=pattern, words=words))


def task_masks(default: str) -> Any:
    """Declare a field that says which client has labels of which tasks."""
    words = (
        "'all', 'exclusive', 'overlapping', or task numbers for each client in turn, as"
        " in '0-2;3,5;4'"
    )
    return setting(default, Rule(str, pattern=_MASKS, words=words))


def flag(default: bool | str, *, auto: bool = False) -> Any:
    """Declare a true/false field."""
    return setting(default, Rule(bool, auto=auto))


def toml_value(value: bool | float | str) -> str:
    """Write a value of a run config as TOML does.

    JSON is alike, but escapes letters such as emoji in two halves, which TOML refuses.
    """
    is_beyond = isinstance(value, str) and max(value, default="") > "\uffff"
    return json.dumps(value, ensure_ascii=not is_beyond).replace("\x7f", "\\u007f")


def read_toml(path: Path, content: bytes | None = None) -> dict[str, Any]:
    """Read a TOML file that a user wrote.

    Parameters
    ----------
    content : bytes, optional
        Of the file, if it has been read before; then it is not read again.

    Raises
    ------
    ConfigError
        It cannot be read, is not UTF-8, or is no TOML.
    """
    try:
        found = path.read_bytes() if content is None else content
        text = io.TextIOWrapper(io.BytesIO(found), encoding="utf-8-sig").read()
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; correct its name, or let the"
            " user of this process read it"
        ) from error
    except (ValueError, RecursionError) as error:  # ValueError: also UTF-8
        raise ConfigError(
            f"{path} is not valid TOML: {error}; correct it (UTF-8 text, as on toml.io)"
        ) from error
    return table
