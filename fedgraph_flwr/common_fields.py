"""Message fields that replies of every method may hold; see ``core.fields``."""

from __future__ import annotations

from functools import partial

from .core.data import TELLS
from .core.embedding_scores import METRICS, TRANSFORMS
from .core.fields import LARGEST, Field, Kind, Phase
from .core.privacy_settings import METRIC as PRIVACY
from .core.rules import MOST_ROUNDS
from .core.tasks import (
    AVERAGE_PRECISION,
    NO_SCORE,
    OF_COMMONEST,
    OF_MEAN,
    ON_ALL,
    ONE_CLASS,
)
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
_SPLITS, _CLASS = "train|val|test|all", "[0-9]+"
_WORKS = (Phase.OPENING, *_ROUNDS)
_CHECKSUM = "checksums that confirm a guess of the data"
COUNTED = "numbers of graphs by class"
POOLED = ("embeddings", "labels", "graph_ids")  # handed over for pooled evaluation


_clean = partial(Field, is_clean=True)


def _text(name: str, *, rest: str = "", is_lasting: bool = True) -> Field:
    kind = Kind.TEXT
    return _clean(
        name=name, rest=rest, kind=kind, phases=_ROLL_CALL, is_lasting=is_lasting
    )


_OVER_TASKS = "(?:-own|-unseen|-task-(?P<task>[0-9]{1,6}))?"
_TRANSFORMED = f"(?:-(?:{'|'.join(TRANSFORMS)}))?"
_SCORES = (  # names of metrics, and their ranges
    (f"(?:{'|'.join(m for m in METRICS if m != 'ari')}){_TRANSFORMED}", 0.0, 1.0),
    (f"ari{_TRANSFORMED}", -1.0, 1.0),
    ("(?:probe|svm)-accuracy", 0.0, 1.0),
    (f"(?:accuracy|roc-auc){ON_ALL}", 0.0, 1.0),
    (f"accuracy{OF_COMMONEST}", 0.0, 1.0),
    (f"mae{ON_ALL}", 0.0, LARGEST),
    (f"(?:roc-auc|{AVERAGE_PRECISION}){_OVER_TASKS}", 0.0, 1.0),
    (f"(?:mae|rmse)(?:{OF_MEAN})?{_OVER_TASKS}", 0.0, LARGEST),
    (f"{NO_SCORE}(?P<task>[0-9]{{1,6}})", 1.0, 1.0),
    ("tasks-skipped", 0.0, LARGEST),
    ("loss", -LARGEST, LARGEST),
    (ONE_CLASS, 0.0, LARGEST),
)
COMMON = (
    *(
        _clean(
            name=EVAL,
            rest=f"(?P<split>{_SPLITS})/(?P<point>post_aggregation|post_training)/"
            f"(?P<metric>{metric})",
            phases=_ROUNDS,
            consent="scores",
            least=least,
            most=most,
        )
        for metric, least, most in _SCORES
    ),
    _clean(name=COUNT, rest=_SPLITS, phases=_ROUNDS, consent="scores"),
    _clean(name=NUM_EXAMPLES, phases=_ROUNDS),
    *(_clean(name=name, phases=_ANY, most=1e12) for name in (COMPUTE_S, STARTED_AT)),
    _clean(name=FRESH_START, phases=_ROUNDS, most=float(MOST_ROUNDS)),
    _clean(name=PRIVACY, rest="[a-z-]+", phases=_WORKS),
    *(
        _clean(name=name, phases=_ROLL_CALL)
        for name in (
            *("num-train", "num-val", "num-test", "num-features", "num-classes"),
            "group",
        )
    ),
    _clean(
        name=CLASS_COUNT,
        rest=_CLASS,
        phases=_ROLL_CALL,
        what=COUNTED,
        consent="pooled_evaluation",
    ),
    _clean(name=TRAIN_COUNT, rest=_CLASS, phases=_ROLL_CALL, consent="scores"),
    *(_text(name) for name in (SPLIT_HASH, IDENTITY, SITE, "tasks", "task-ids")),
    Field(
        name=RAW_HASH,
        kind=Kind.TEXT,
        phases=_ROLL_CALL,
        what=_CHECKSUM,
    ),
    _clean(name=WEIGHTS_HASH, kind=Kind.TEXT, phases=(Phase.CLOSING,)),
    _clean(
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
    ),
    _text(TOLD + UNUSED, is_lasting=False),
    _text(TOLD + LEFT_OUT, is_lasting=False),
    _text(TOLD, rest="[a-z0-9-]+"),
    *(
        _clean(
            name=name,
            kind=Kind.ARRAY,
            phases=_ROUNDS,
            what="embeddings, labels or graph ids",
            consent="pooled_evaluation",
        )
        for name in POOLED
    ),
)
