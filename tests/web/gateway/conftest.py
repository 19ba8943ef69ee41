"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest

from queuey.app.service import App
from tests.web.gateway_calls import Run, make_runner


@pytest.fixture
def run(app: App) -> Run:
    return make_runner(app)
