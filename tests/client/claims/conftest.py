"""Loops that claim in the batches of the scripts."""

from __future__ import annotations

from math import inf

import pytest

from queuey.client._async import job_queue as async_job_queue
from queuey.client._sync import job_queue as sync_job_queue
from queuey.client.claims import claiming


@pytest.fixture(autouse=True)
def _whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets loops claim at once as many as they may, and keep them, because scripted and real time differ.

    That they do neither is tested with workers (``test_slow_jobs.py``).
    """
    monkeypatch.setattr(claiming, "FIRST_LIMIT", 1000)
    for module in (async_job_queue, sync_job_queue):
        monkeypatch.setattr(module, "MAX_BODY_SECONDS", inf)
