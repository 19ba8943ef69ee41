"""The fixtures under test, which users load as a plugin."""

from __future__ import annotations

from queuey.testing import queuey, queuey_clock, queuey_process, queuey_service, queuey_stores

__all__ = ["queuey", "queuey_clock", "queuey_process", "queuey_service", "queuey_stores"]
