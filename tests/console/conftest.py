"""The application with the console, and browsers with logged-in users."""

from __future__ import annotations

import threading

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.console.resources import make_console
from queuey.model.messages import OPERATORS, Finding
from queuey.model.rights import parse_scope
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from tests.console.browser import Browser
from tests.interposed_store import InterposedStore
from tests.tenants import GUEST_KEY, KEY, backend, between, ended, guest, limits, owner, prompt, stopping

__all__ = ["backend", "between", "ended", "guest", "limits", "owner", "prompt", "stopping"]

OPERATOR_KEY, LIMITED_KEY, MEASURE_KEY = "1" * 64, "2" * 64, "3" * 64


def examine() -> list[Finding]:
    return [Finding("clock", "warn", "is <b>late</b>", "Set it.")]


@pytest.fixture
def app(store: Store, between: InterposedStore, limits: Limits, stopping: threading.Event) -> App:
    """The application for two tenants, with keys of every kind."""
    for name, key in (("queuey", KEY), ("guest", GUEST_KEY)):
        bridge.run(store.applications.create_application(name))
        bridge.run(store.applications.add_key(name, digest_of(key)))
    bridge.run(store.applications.add_key(OPERATORS, digest_of(OPERATOR_KEY)))
    bridge.run(store.applications.add_key("queuey", digest_of(LIMITED_KEY), scope=parse_scope(["read"], ["orders-*"])))
    bridge.run(store.applications.add_key("queuey", digest_of(MEASURE_KEY), scope=parse_scope(["measure"])))
    return make_app(between.store, limits=limits, stopping=stopping, includes=[make_console(examine)])


def logged_in(app: App, key: str) -> Browser:
    browser = Browser(app)
    assert browser.log_in(key).status == 303
    return browser


@pytest.fixture
def stranger(app: App) -> Browser:
    return Browser(app)


@pytest.fixture
def browser(app: App) -> Browser:
    return logged_in(app, KEY)


@pytest.fixture
def operator(app: App) -> Browser:
    return logged_in(app, OPERATOR_KEY)


@pytest.fixture
def limited(app: App) -> Browser:
    """A browser whose user may read some of the queues."""
    return logged_in(app, LIMITED_KEY)


@pytest.fixture
def measuring(app: App) -> Browser:
    """A browser whose user may see counts but not messages."""
    return logged_in(app, MEASURE_KEY)
