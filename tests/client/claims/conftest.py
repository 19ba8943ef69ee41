"""Loops that claim in the batches of the scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from queuey.client._async import job_queue as async_job_queue
from queuey.client._sync import job_queue as sync_job_queue
from queuey.client.calls.call import Call
from queuey.client.claims.claiming import Claiming
from queuey.client.claims.held import ClaimBatch, HeldClaim
from queuey.client.results import Received
from tests.replacing import replace_in


class WholeBatches(Claiming):
    """Claims at once as many messages as the loop may."""

    def next_call(self) -> Call[Received]:
        self._present_limit = self._limit
        return super().next_call()

    def pause_after_claim(self, batch: Sequence[HeldClaim]) -> float | None:
        pause = super().pause_after_claim(batch)
        self._present_limit = self._limit
        return pause


@pytest.fixture(autouse=True)
def _whole_batches() -> Iterator[None]:
    """Lets loops claim at once as many as they may, and keep them, because scripted and real time differ.

    That they do neither is tested with workers (``test_slow_jobs.py``).
    """
    with ExitStack() as stack:
        for module in (async_job_queue, sync_job_queue):
            stack.enter_context(replace_in(module, Claiming, WholeBatches))
            stack.enter_context(replace_in(module, ClaimBatch, lambda _max_seconds: ClaimBatch()))
        yield
