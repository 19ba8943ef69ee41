"""Raises an error when it is imported."""

from __future__ import annotations

QUOTIENT = 1 / 0
