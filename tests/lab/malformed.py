"""Values, texts and files that no honest program writes; ``rng`` draws them."""

from __future__ import annotations

import json
import math

HUGE = (2**31, 10**18, 2**63 - 1, -(2**63), 10**40)
NUMBERS = (math.nan, math.inf, -math.inf, -1, 0, -0.5, 0.5, 1e308, 5e-324, *HUGE)
TEXTS = ("", " ", "\x00", "nan", "auto", "é" * 40, "x" * 300, "9" * 5000, "../../x")
TEXTS = (*TEXTS, "a\nb", "٣", "[1", '{"a": 1}', "-1", "0,1,", "[" * 100_000)


def of_value(rng):
    """Draw a value of any type that a run config may hold."""
    return rng.choice([rng.choice(NUMBERS), rng.choice(TEXTS), True, False])


def of_bytes(rng, data):
    """Damage bytes; return what was done, and what is left."""
    at = rng.randint(0, max(len(data) - 1, 0))
    noise = rng.randbytes(rng.choice([1, 8, 500]))
    flipped = bytearray(data)
    for place in [at, *(rng.randint(0, at) for _ in range(rng.choice([0, 19])))]:
        flipped[place : place + 1] = [b ^ 4 for b in flipped[place : place + 1]]
    made = {
        "flip": bytes(flipped),
        "cut": data[:at],
        "append": data + noise,
        "zeros": data[:at] + bytes(len(data) - at),
        "insert": data[:at] + noise + data[at:],
        "garbage": noise,
    }
    how = rng.choice(sorted(made))
    return f"{how} at {at}", made[how]


def of_lines(rng, text):
    """Change a table of text: a cell, a line, or the whole."""
    lines = text.splitlines() or [""]
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    cells = lines[at].split(",")
    cells[rng.randrange(len(cells))] = str(of_value(rng))
    odd = rng.choice(["", '"', "\x00", "'", "\ufeff", "\t"])
    made = {
        "cell": [",".join(cells)],
        "drop": [],
        "double": [lines[at]] * 2,
        "swap": [lines[other]],
        "commas": [lines[at] + "," * rng.choice([1, 1000])],
        "blank": [odd],
        "long": [lines[at] * 10_000],
    }
    how = rng.choice([*made, "cell", "cell"])
    return f"{how} in line {at}", "\n".join([*lines[:at], *made[how], *lines[at + 1 :]])


def of_json(rng, content):
    """Change or delete one value of a JSON document, or write another text."""
    here, path, parent = content, [], None
    while isinstance(here, dict | list) and here and (not path or rng.random() < 0.7):
        key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        path, parent, here = [*path, key], here, here[key]
    if not path or rng.random() < 0.2:
        text = rng.choice(["", "null", "[]", "{}", "1", "[" * 100_000, '{"a":', "NaN"])
        return f"write {text[:8]!r}", text
    new = rng.choice([of_value(rng), None, [], {}, [1, 2], {"a": 1}])
    if rng.random() < 0.3:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return f"{path}: {str(new)[:40]!r}, or nothing", json.dumps(content)


def of_file(rng, name, data):
    """Damage a file in a way that fits its name."""
    if data and rng.random() < 0.6:
        if name.endswith(".json"):
            what, text = of_json(rng, json.loads(data))
            return what, text.encode(errors="surrogatepass")
        if name.endswith((".csv", ".txt", ".toml")):
            what, text = of_lines(rng, data.decode())
            return what, text.encode(errors="surrogatepass")
    return of_bytes(rng, data)


def damage(rng, path, others, target=""):
    """Change a file, or put something else in its place; say how.

    A link is to ``target`` or to itself.
    """
    how = rng.choice(["change"] * 6 + ["delete", "folder", "swap", "link"])
    if how == "change":
        how, data = of_file(rng, path.name, path.read_bytes())
        path.write_bytes(data)
    elif how == "swap":
        other = rng.choice(others)
        mine, its = path.read_bytes(), other.read_bytes()
        path.write_bytes(its)
        other.write_bytes(mine)
        how = f"swap with {other}"
    else:
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "link":
        path.symlink_to(target or path.name)
    return f"{path.name}: {how}"
