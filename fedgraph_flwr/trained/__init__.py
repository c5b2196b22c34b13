"""Trained models as folders that can be copied, read and used without a run."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .model import TrainedModel, load_model

__all__ = ["TrainedModel", "load_model"]


def __getattr__(name: str) -> Any:
    """Import torch when a model is loaded: who writes or lists folders needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import model

    return getattr(model, name)
