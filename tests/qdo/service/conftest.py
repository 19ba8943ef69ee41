"""Fixtures of groups of the service."""

from __future__ import annotations

from tests.qdo.consumer.conftest import _own_environment, profile, running, system

__all__ = ["_own_environment", "profile", "running", "system"]
