"""What tests of the gateway share."""

from __future__ import annotations

import pytest

from queuey.web.parts import App
from tests.web.gateway_calls import Run, running


@pytest.fixture
def run(app: App) -> Run:
    """Runs something with a gateway before the application."""
    return running(app)
