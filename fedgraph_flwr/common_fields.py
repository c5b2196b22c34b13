"""Message fields that replies of every method may hold; see ``core.fields``."""

from __future__ import annotations

from .core.data import TELLS
from .core.fields import Field, Kind, Phase
from .core.privacy_settings import METRIC as PRIVACY
from .core.rules import MOST_ROUNDS
from .core.wire import (
    CLASS_COUNT,
    COMPUTE_S,
    COUNT,
    EVAL,
    FRESH_START,
    IDENTITY,
    LEFT_OUT,
    NUM_EXAMPLES,
    RAW_HASH,
    SITE,
    SPLIT_HASH,
    STARTED_AT,
    TOLD,
    TRAIN_COUNT,
    UNUSED,
    WEIGHTS_HASH,
    WHOLE,
)

_ROLL_CALL, _ANY = (Phase.ROLL_CALL,), tuple(Phase)
_ROUNDS = (Phase.TRAINING, Phase.CLOSING)
_SPLITS, _CLASS = "(?:train|val|test|all)", "[0-9]+"
_WORKS = (Phase.OPENING, *_ROUNDS)
_CHECKSUM = "checksums that confirm a guess of the data"
COUNTED = "numbers of graphs by class"
POOLED = ("embeddings", "labels", "graph_ids")  # handed over for pooled evaluation


def _text(name: str, *, rest: str = "", is_lasting: bool = True) -> Field:
    kind = Kind.TEXT
    return Field(
        name=name, rest=rest, kind=kind, phases=_ROLL_CALL, is_lasting=is_lasting
    )


COMMON = (
    Field(
        name=EVAL,
        rest=f"{_SPLITS}/post_(?:aggregation|training)/[a-z0-9-]+",
        phases=_ROUNDS,
        consent="scores",
    ),
    Field(name=COUNT, rest=_SPLITS, phases=_ROUNDS, consent="scores"),
    Field(name=NUM_EXAMPLES, phases=_ROUNDS),
    *(Field(name=name, phases=_ANY, most=1e12) for name in (COMPUTE_S, STARTED_AT)),
    Field(name=FRESH_START, phases=_ROUNDS, most=float(MOST_ROUNDS)),
    Field(name=PRIVACY, rest="[a-z-]+", phases=_WORKS),
    *(
        Field(name=name, phases=_ROLL_CALL)
        for name in (
            *("num-train", "num-val", "num-test", "num-features", "num-classes"),
            "group",
        )
    ),
    Field(
        name=CLASS_COUNT,
        rest=_CLASS,
        phases=_ROLL_CALL,
        what=COUNTED,
        consent="pooled_evaluation",
    ),
    Field(name=TRAIN_COUNT, rest=_CLASS, phases=_ROLL_CALL, consent="scores"),
    *(_text(name) for name in (SPLIT_HASH, IDENTITY, SITE, "tasks", "task-ids")),
    Field(
        name=RAW_HASH,
        kind=Kind.TEXT,
        phases=_ROLL_CALL,
        what=_CHECKSUM,
        is_clean=False,
    ),
    Field(name=WEIGHTS_HASH, kind=Kind.TEXT, phases=(Phase.CLOSING,)),
    Field(
        name=TOLD + TELLS,
        kind=Kind.TEXT,
        phases=_ROLL_CALL,
        what="counts and means of graphs",
        consent="statistics",
        is_lasting=False,
    ),
    Field(
        name=TOLD + WHOLE,
        kind=Kind.TEXT,
        phases=_ROLL_CALL,
        what=_CHECKSUM,
        is_clean=False,
    ),
    _text(TOLD + UNUSED, is_lasting=False),
    _text(TOLD + LEFT_OUT, is_lasting=False),
    _text(TOLD, rest="[a-z0-9-]+"),
    *(
        Field(
            name=name,
            kind=Kind.ARRAY,
            phases=_ROUNDS,
            what="embeddings, labels or graph ids",
            consent="pooled_evaluation",
        )
        for name in POOLED
    ),
)
