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
    with Served(tmp_path_factory.mktemp("console"), ["--console", "on", "--workers", "2"]) as served:
        yield served


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with closing(served.client()) as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium, which is not installed")
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}/console"


@pytest.fixture(scope="module")
def session(chromium: Browser, served: Served, url: str) -> StorageState:
    """Cookies of a logged-in user, for all tests: the number of logins with one key is limited."""
    with closing(chromium.new_context()) as context:
        Watched(context.new_page(), url).log_in(str(served.profile.key))
        return context.storage_state()


@pytest.fixture
def watched(chromium: Browser, url: str) -> Iterator[Watched]:
    """A window in which no errors may occur."""
    with closing(chromium.new_context()) as context:
        watched = Watched(context.new_page(), url)
        yield watched
        assert watched.troubles == []


@pytest.fixture
def page(watched: Watched, session: StorageState) -> Page:
    """The window, with a logged-in user."""
    watched.page.context.add_cookies(session["cookies"])  # type: ignore[arg-type]
    watched.open("")
    return watched.page


@pytest.fixture(scope="session")
def axe() -> str:
    return browsers.axe_core()
