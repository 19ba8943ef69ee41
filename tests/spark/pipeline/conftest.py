"""What all tests of jobs have in common."""

from __future__ import annotations

import pytest

from tests.spark.pipeline.archive.archives import last_hour


@pytest.fixture(autouse=True)
def _hour_of_the_test() -> None:
    """Each test has the hour in which it began for this hour."""
    last_hour.cache_clear()
