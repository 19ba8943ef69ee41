"""Cannot be imported."""

from __future__ import annotations

QUOTIENT = 1 / 0
