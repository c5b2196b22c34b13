"""Values, texts and bytes that no honest program writes."""

from __future__ import annotations

import json
import math
import random
from typing import Any

HUGE = (2**31, 10**18, 2**63 - 1, -(2**63), 10**40)
NUMBERS = (math.nan, math.inf, -math.inf, -1, 0, -0.5, 0.5, 1e308, 5e-324, *HUGE)
TEXTS = (
    "",
    " ",
    "\x00",
    "nan",
    "auto",
    "é" * 40,
    "x" * 300,
    "9" * 5000,
    "../../x",
    "a\nb",
    "٣",
    "[1",
    '{"a": 1}',
    "-1",
    "0,1,",
)


def value(rng: random.Random) -> Any:
    """Draw a value of any type that a run config may hold."""
    return rng.choice([rng.choice(NUMBERS), rng.choice(TEXTS), True, False])


def of_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Damage a file; return what was done, and what is left."""
    at = rng.randrange(len(data)) if data else 0
    kind = rng.choice(
        ["flip", "flip many", "cut", "empty", "append", "zeros", "insert", "garbage"]
    )
    changed = bytearray(data)
    if kind.startswith("flip"):
        for _ in range(1 if kind == "flip" else 20):
            if changed:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        return f"{kind} a bit at {at}", bytes(changed)
    noise = rng.randbytes(rng.choice([1, 8, 500]))
    made = {
        "cut": data[:at],
        "empty": b"",
        "append": data + noise,
        "zeros": data[:at] + bytes(len(data) - at),
        "insert": data[:at] + noise + data[at:],
        "garbage": noise,
    }
    return f"{kind} at {at}", made[kind]


def of_lines(rng: random.Random, text: str) -> tuple[str, str]:
    """Change a table of text: a cell, a line, or the whole."""
    lines = text.splitlines()
    at = rng.randrange(len(lines)) if lines else 0
    kind = rng.choice(
        ["cell", "cell", "cell", "drop", "double", "swap", "commas", "blank", "long"]
    )
    if not lines:
        return "nothing", text
    if kind == "cell":
        cells = lines[at].split(",")
        cells[rng.randrange(len(cells))] = str(value(rng))
        lines[at] = ",".join(cells)
    elif kind == "drop":
        del lines[at]
    elif kind == "double":
        lines.insert(at, lines[at])
    elif kind == "swap":
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == "commas":
        lines[at] += "," * rng.choice([1, 1000])
    elif kind == "blank":
        lines[at] = rng.choice(["", '"', "\x00", "'", "\ufeff", "\t"])
    else:
        lines[at] = lines[at] * 10_000
    return f"{kind} in line {at}", "\n".join(lines) + "\n"


def of_json(rng: random.Random, content: Any) -> tuple[str, str]:
    """Change one value of a JSON document, or write another text in its place."""
    if rng.random() < 0.2:
        text = rng.choice(["", "null", "[]", "{}", "1", "[" * 100_000, '{"a":', "NaN"])
        return f"write {text[:8]!r}", text
    path: list[Any] = []
    here = content
    while isinstance(here, dict | list) and here and (not path or rng.random() < 0.7):
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        path.append(rng.choice(keys))
        parent, here = here, here[path[-1]]
    if not path:
        return "nothing", json.dumps(content)
    if rng.random() < 0.3:
        del parent[path[-1]]
        return f"delete {path}", json.dumps(content)
    parent[path[-1]] = rng.choice([value(rng), None, [], {}, [1, 2], {"a": 1}])
    return f"set {path} to {str(parent[path[-1]])[:40]!r}", json.dumps(content)


def of_file(rng: random.Random, name: str, data: bytes) -> tuple[str, bytes]:
    """Damage a file in a way that fits its name."""
    if rng.random() < 0.6:
        if name.endswith(".json") and data:
            what, text = of_json(rng, json.loads(data))
            return what, text.encode()
        if name.endswith((".csv", ".txt", ".toml")):
            what, text = of_lines(rng, data.decode())
            return what, text.encode(errors="surrogatepass")
    return of_bytes(rng, data)
