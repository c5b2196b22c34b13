"""Named run-config overrides, kept as TOML files in this folder."""

from .read import list_presets, load_preset, show

__all__ = ["list_presets", "load_preset", "show"]
