"""A service with the console, a browser, and axe-core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Page, StorageState

from queuey.client import Client
from tests.console.chromium.seeing import Watched
from tests.servers import chromium as browsers
from tests.servers.chromium import CHROMIUM
from tests.servers.served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with two workers, which have the console."""
    with Served(tmp_path_factory.mktemp("console"), ["--console", "on", "--workers", "2"]) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    """A client of the service."""
    with closing(served.client()) as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without windows."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium, which is not installed")
    with browsers.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def url(served: Served) -> str:
    """Where the console is."""
    return f"http://127.0.0.1:{served.port}/console"


@pytest.fixture(scope="module")
def session(chromium: Browser, served: Served, url: str) -> StorageState:
    """The cookies of a user who has logged in, once for all tests: logins with one key are bounded."""
    with closing(chromium.new_context()) as context:
        Watched(context.new_page(), url).log_in(str(served.profile.key))
        return context.storage_state()


@pytest.fixture
def watched(chromium: Browser, url: str) -> Iterator[Watched]:
    """A window in which nothing may go wrong."""
    with closing(chromium.new_context()) as context:
        watched = Watched(context.new_page(), url)
        yield watched
        assert watched.troubles == []


@pytest.fixture
def page(watched: Watched, session: StorageState) -> Page:
    """The window, whose user has logged in."""
    watched.page.context.add_cookies(session["cookies"])  # type: ignore[arg-type]
    watched.open("")
    return watched.page


@pytest.fixture(scope="session")
def axe() -> str:
    """The program of axe-core."""
    return browsers.axe_core()
