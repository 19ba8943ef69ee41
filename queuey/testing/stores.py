"""The store that the tests of a session share: each has an application of its own, which is made in a millisecond."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuey.embedded.pools import InProcessPool
from queuey.embedded.service import EmbeddedService
from queuey.settings import load
from queuey.storage import bridge, sqlite
from queuey.storage.opening import sqlite_options
from queuey.testing.clocks import Clock, MovedCore


class SharedPool(InProcessPool):
    """The pool of a test, whose service goes on afterwards."""

    def close(self) -> None:
        pass  # The next test uses the service.


class TestStores:
    """The service of the present store, opened when a test first needs it.

    Args:
        directories: Where stores are made.

    Attributes:
        clock: The clock of the present store.
    """

    __test__ = False  # pytest collects classes of this name

    def __init__(self, directories: pytest.TempPathFactory) -> None:
        self._directories = directories
        self._service: EmbeddedService | None = None
        self._applications = 0
        self.clock = Clock()

    def application(self) -> tuple[EmbeddedService, str]:
        """Returns a service, and an application in it that is empty."""
        service = self._service or self._open()
        self._applications += 1
        name = f"test-{self._applications}"
        bridge.run(service.service.store.applications.create_application(name))
        return service, name

    def _open(self) -> EmbeddedService:
        settings = load({"data": str(self._directories.mktemp("queuey") / "test.db"), "sync": "normal"}, {}).settings
        self.clock = clock = Clock()
        store = sqlite.open_store(settings.data, options=replace(sqlite_options(settings), clock=clock.ticks))
        store.clock_difference = 0.0  # No other clock is there to differ: what is due in an hour is due after one.
        self._service = EmbeddedService(store, settings, MovedCore(clock))
        clock.of(self._service.service)
        return self._service

    def give_up(self) -> None:
        """Ends the present store, whose time is not that of the next test."""
        if self._service is not None:
            self._service.close()
            self._service = None

    close = give_up
