"""Fixtures of all tests of jobs."""

from __future__ import annotations

import pytest

from tests.spark.pipeline.archive.archives import last_hour


@pytest.fixture(autouse=True)
def _hour_of_the_test() -> None:
    """Fixes the current hour to the one in which the test began."""
    last_hour.cache_clear()
