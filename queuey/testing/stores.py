"""The store that all tests of a session share. Each test gets its own application, which takes about 1 ms to create."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuey.app.opening import sqlite_options
from queuey.embedded.pools import InProcessPool
from queuey.embedded.service import EmbeddedService
from queuey.settings import load
from queuey.storage import bridge, sqlite
from queuey.testing.clocks import Clock, MovedCore


class SharedPool(InProcessPool):
    """The pool of one test. Closing it does not close the service."""

    def close(self) -> None:
        pass  # The next test uses the service.


class TestStores:
    """The service and the store of the session. Opened when a test first needs them.

    Args:
        directories: Creates the directories of stores.

    Attributes:
        clock: The clock of the current store.
    """

    __test__ = False  # pytest would collect a class with this name

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._service: EmbeddedService | None = None
        self._applications = 0
        self.clock = Clock()

    def make_application(self) -> tuple[EmbeddedService, str]:
        service = self._service or self._open()
        self._applications += 1
        name = f"test-{self._applications}"
        bridge.run(service.service.store.applications.create_application(name))
        return service, name

    def _open(self) -> EmbeddedService:
        settings = load({"data": str(self._directories.mktemp("queuey") / "test.db"), "sync": "normal"}, {}).settings
        self.clock = clock = Clock()
        store = sqlite.open_store(settings.data, options=replace(sqlite_options(settings), clock=clock.ticks))
        store.clock_difference = 0.0  # Only one clock exists, so no margin is added to due times.
        self._service = EmbeddedService(store, settings, MovedCore(clock))
        clock.of(self._service.service)
        return self._service

    def give_up(self) -> None:
        """Closes the current store, because its moved time must not affect the next test."""
        if self._service is not None:
            self._service.close()
            self._service = None

    close = give_up
