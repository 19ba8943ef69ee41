"""Reads on an event loop, as the service does."""

from __future__ import annotations

from queuey.messages import Page, Queue, Slice
from queuey.storage import Store
from tests.contract.samples import begin

PATIENCE = 60.0
"""Timeout for an answer, in seconds."""


def page_of(store: Store, queue: Queue, part: Slice) -> Page:
    [page] = begin(store.messages.read(queue, [part])).result(PATIENCE)
    return page
