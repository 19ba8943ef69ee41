"""Work that Spark's workers look up by its name."""

from __future__ import annotations

from importlib import import_module

import pytest

from queuey.pipeline.tasks import WORK_FUNCTIONS


@pytest.mark.parametrize("kind", WORK_FUNCTIONS)
def test_each_kind_of_work_exists(kind: str) -> None:
    """Only a worker imports the function, so a wrong name would show there alone."""
    module, _, name = WORK_FUNCTIONS[kind].partition(":")
    assert callable(getattr(import_module(module), name))
