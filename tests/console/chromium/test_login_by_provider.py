"""A user logs in to the console at an OpenID provider, which is another site, in Chromium."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from playwright.sync_api import Browser, expect

from queuey.console import cookies
from queuey.model.user_queues import issuer_tag, queue_name, user_name
from tests.access.users.provider import OpenIdProvider, providing
from tests.console.chromium.seeing import Watched, find_accessibility_violations
from tests.servers.served import Served

PATTERN = "inbox-{user}"
SECRET = "provider secret"


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    """The provider for logins: ``localhost`` is another site than ``127.0.0.1``."""
    with providing("localhost", secret=SECRET) as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, provider: OpenIdProvider) -> Iterator[Served]:
    """Serves the console for an application whose users log in at the provider."""
    directory = tmp_path_factory.mktemp("logins")
    (directory / "secret").write_text(SECRET)
    issuer = {
        "issuer": provider.root,
        "audience": "queuey",
        "keys": provider.url,
        "client": "queuey",
        "secret": f"file:{directory / 'secret'}",
        "queues": {PATTERN: ["read", "delete"]},
        "roles": {"admins": ["read"]},
    }
    options = ["--console", "on", "--workers", "2", "--users", json.dumps({"queuey": issuer})]
    with Served(directory, options) as served:
        yield served


def go(watched: Watched, provider: OpenIdProvider) -> None:
    watched.page.goto(watched.url)
    watched.page.get_by_role("link", name=f"Log in at {provider.root.removeprefix('http://')}").click()


@pytest.mark.parametrize("asks", [True, False])
def test_from_login_to_logout(
    chromium: Browser,
    served: Served,
    provider: OpenIdProvider,
    url: str,
    asks: bool,  # noqa: FBT001
) -> None:
    """Whether the provider shows a page or sends the browser back at once, the user is logged in, in both workers."""
    name = queue_name(PATTERN, user_name(provider.root, "ann"))
    with served.client() as client:
        client.create_queue(name)
        client.send(name, "Your parcel arrives today.")
    provider.asks, provider.user, provider.claims = asks, "ann", {}
    with closing(chromium.new_context()) as context:
        watched = Watched(context.new_page(), url)
        page = watched.page
        go(watched, provider)
        if asks:
            page.get_by_role("link", name="Go on as ann").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queues of queuey")
        expect(page.get_by_text(f"user:{issuer_tag(provider.root)}.ann of queuey")).to_be_visible()
        assert {one["name"] for one in context.cookies() if one["domain"] == "127.0.0.1"} == {cookies.SESSION_COOKIE}
        page.get_by_role("link", name="queuey", exact=True).click()
        page.get_by_role("link", name=name).click()
        page.get_by_role("link", name="Messages", exact=True).click()
        expect(page.get_by_text("Your parcel arrives today.").first).to_be_visible()
        for _ in range(10):
            page.reload()
            expect(page.get_by_role("button", name="Log out")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.go_back()
        page.goto(url)
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        assert watched.troubles == []


@pytest.mark.parametrize("address", ["login", "a/queuey"])
def test_pages_are_for_everybody(chromium: Browser, provider: OpenIdProvider, url: str, axe: str, address: str) -> None:
    """The form with a button for a provider, and the list of a user's own queues, pass on a small screen."""
    provider.asks, provider.user, provider.claims = False, "ann", {}
    with closing(chromium.new_context(viewport={"width": 375, "height": 700})) as context:
        watched = Watched(context.new_page(), url)
        if address != "login":
            go(watched, provider)
            expect(watched.page.get_by_role("heading", level=1)).to_have_text("Queues of queuey")
        watched.open(address)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 375
        assert find_accessibility_violations(watched.page, axe) == []
        assert watched.troubles == []
