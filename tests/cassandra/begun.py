"""Reading the way that blocks nobody, wherever a store takes it."""

from __future__ import annotations

from concurrent.futures import Future

from queuey.messages import Page, Queue, Slice
from queuey.storage import Store

PATIENCE = 60.0
"""Seconds for which an answer is waited for."""


def begun_page(store: Store, queue: Queue, part: Slice) -> Page | None:
    """Returns the page of a read that was begun, None if none was; an end that is told twice fails."""
    future: Future[Page] = Future()

    def done(page: Page | None, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        elif page is not None:
            future.set_result(page)

    return future.result(PATIENCE) if store.begin_read(queue, part, done) else None


def page_of(store: Store, queue: Queue, part: Slice) -> Page:
    """Reads a slice, the way that blocks nobody first, as the service does."""
    return begun_page(store, queue, part) or store.read(queue, [part])[0]
