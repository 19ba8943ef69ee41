"""Fixtures of groups of the service."""

from __future__ import annotations

from tests.qdo.consumer.conftest import own_environment, profile, running, system

__all__ = ["own_environment", "profile", "running", "system"]
