"""Activations that other tools saved: which files there are, and their tensors row by row, whatever the format."""

from .found import SavedFiles, saved_files
from .source import Saved, Source

__all__ = ["Saved", "SavedFiles", "Source", "saved_files"]
