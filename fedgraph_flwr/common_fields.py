"""Message fields that replies of every method may hold; see ``core.fields``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from .core.data import TELLS
from .core.embedding_scores import METRICS, TRANSFORMS
from .core.fields import LARGEST, Field, Kind, Phase
from .core.privacy_settings import METRIC as PRIVACY
from .core.rules import MOST_ROUNDS
from .core.secure_aggregation import KNOWN_BY, UPDATE_NORM
from .core.tasks import (
    AT_RECALL,
    AVERAGE_PRECISION,
    BY_TASK,
    CLASS_SCORES,
    CONFUSION,
    LINK_SCORES,
    NO_SCORE,
    OF_COMMONEST,
    OF_MEAN,
    ON_ALL,
    ONE_CLASS,
    THRESHOLD,
)
from .core.wire import (
    CLASS_COUNT,
    COUNT,
    EVAL,
    FRESH_START,
    IDENTITY,
    LEFT_OUT,
    NUM_EXAMPLES,
    RAW_HASH,
    SITE,
    SPLIT_HASH,
    TIMING,
    TOLD,
    TRAIN_COUNT,
    UNUSED,
    WEIGHTS_HASH,
    WHOLE,
)
from .core.words import SITE_NAME, SITE_NAME_WORDS

_ROLL_CALL, _ROUNDS = (Phase.ROLL_CALL,), (Phase.TRAINING, Phase.CLOSING)
_SPLITS, _CLASS = "train|val|test|all", "[0-9]+"
POOLED = ("embeddings", "labels", "graph_ids")  # handed over for pooled evaluation
_POOLS: Mapping[str, Any] = {
    "what": "embeddings, labels, graph ids or numbers of graphs by class",
    "consent": "pooled_evaluation",
}
_open = partial(Field, is_clean=True)
_counts = partial(_open, kind=Kind.NUMBER, phases=_ROLL_CALL, most=2.0**53)
_GUESS = "checksums that confirm a guess"
_HASH = "[0-9a-f]{64}"
_HASH_OR_NOTHING: Mapping[str, Any] = {
    "pattern": f"({_HASH})?",
    "words": "a SHA-256 or nothing",
}
_OVER_TASKS = "(?:-own|-unseen|-task-(?P<task>[0-9]{1,6}))?"
_OF_TASK = f"(?:{BY_TASK}(?P<task>[0-9]{{1,6}}))?"
_TRANSFORMED = f"(?:-(?:{'|'.join(TRANSFORMS)}))?"
_SCORES = (  # names of metrics, and their ranges
    (f"(?:{'|'.join(m for m in METRICS if m != 'ari')}){_TRANSFORMED}", 0.0, 1.0),
    (f"ari{_TRANSFORMED}", -1.0, 1.0),
    ("(?:probe|svm)-accuracy", 0.0, 1.0),
    (f"(?:accuracy|roc-auc){ON_ALL}", 0.0, 1.0),
    (f"(?:{'|'.join([*CLASS_SCORES, *LINK_SCORES])}|accuracy{OF_COMMONEST})", 0.0, 1.0),
    (f"mae{ON_ALL}", 0.0, LARGEST),
    (f"(?:roc-auc|{'|'.join((AVERAGE_PRECISION, *AT_RECALL))}){_OVER_TASKS}", 0.0, 1.0),
    (f"{THRESHOLD}{_OF_TASK}", 0.0, 1.0),
    (f"(?:{'|'.join(CONFUSION)}){_OF_TASK}", 0.0, 2.0**53),
    (f"(?:mae|rmse)(?:{OF_MEAN})?{_OVER_TASKS}", 0.0, LARGEST),
    (f"{NO_SCORE}(?P<task>[0-9]{{1,6}})", 1.0, 1.0),
    ("tasks-skipped", 0.0, LARGEST),
    ("loss", -LARGEST, LARGEST),
    (ONE_CLASS, 0.0, LARGEST),
)
COMMON = (
    *(
        _open(
            EVAL,
            Kind.NUMBER,
            _ROUNDS,
            rest=f"(?P<split>{_SPLITS})/(?P<point>post_aggregation|post_training)/"
            f"(?P<metric>{metric})",
            consent="scores",
            least=least,
            most=most,
        )
        for metric, least, most in _SCORES
    ),
    _open(COUNT, Kind.NUMBER, _ROUNDS, rest=_SPLITS, consent="scores"),
    _open(NUM_EXAMPLES, Kind.NUMBER, _ROUNDS),
    *(_open(name, Kind.NUMBER, tuple(Phase), most=1e12) for name in TIMING),
    _open(UPDATE_NORM, Kind.NUMBER, (Phase.TRAINING,), consent="scores"),
    _open(FRESH_START, Kind.NUMBER, _ROUNDS, most=float(MOST_ROUNDS)),
    _open(PRIVACY, Kind.NUMBER, (Phase.OPENING, *_ROUNDS), rest="[a-z-]+"),
    _counts("num-", rest="train|val|test"),
    # The server makes the model that training starts from, as wide as a client says.
    _counts("num-features", least=1, most=1e6),
    _counts("num-classes", least=1, most=1e5),
    _counts("num-edge-features", most=1e6),
    _counts("num-graph-features", most=1e6),
    _counts("group", least=-1),
    _counts(CLASS_COUNT, rest=_CLASS, **_POOLS),
    _counts(TRAIN_COUNT, rest=_CLASS, consent="scores"),
    _open(SPLIT_HASH, Kind.TEXT, _ROLL_CALL, **_HASH_OR_NOTHING),
    _open(IDENTITY, Kind.TEXT, _ROLL_CALL),
    _open(SITE, Kind.TEXT, _ROLL_CALL, pattern=SITE_NAME, words=SITE_NAME_WORDS),
    *(
        _open(name, Kind.TEXT, _ROLL_CALL, pattern=".*", words="a list as JSON")
        for name in ("tasks", "task-ids")
    ),
    Field(RAW_HASH, Kind.TEXT, _ROLL_CALL, what=_GUESS, **_HASH_OR_NOTHING),
    Field(TOLD + WHOLE, Kind.TEXT, _ROLL_CALL, what=_GUESS),
    _open(WEIGHTS_HASH, Kind.TEXT, (Phase.CLOSING,), pattern=_HASH, words="a SHA-256"),
    _open(
        TOLD + TELLS,
        Kind.TEXT,
        _ROLL_CALL,
        what="counts and means of graphs",
        consent="statistics",
        is_lasting=False,
    ),
    *(
        _open(TOLD + name, Kind.TEXT, _ROLL_CALL, is_lasting=False)
        for name in (UNUSED, LEFT_OUT, KNOWN_BY)
    ),
    _open(TOLD, Kind.TEXT, _ROLL_CALL, rest="[a-z0-9-]+"),
    *(_open(name, Kind.ARRAY, _ROUNDS, **_POOLS) for name in POOLED),
)
