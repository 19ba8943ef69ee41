"""What tests of the gateway share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.gateway_calls import Run, running


@pytest.fixture
def run(app: Any) -> Run:  # noqa: ANN401 - Pyramid's router
    """Runs something with a gateway before the application."""
    return running(app)
