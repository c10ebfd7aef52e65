"""Families of methods that read chains, each registered under its name."""

from __future__ import annotations

from . import features, tfidf
from .features import BASELINES
from .method import Method, known, make, register

__all__ = ["BASELINES", "Method", "known", "make", "register", "features", "tfidf"]
