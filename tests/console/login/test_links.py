"""Links that log in once, and the console that only browsers on this machine reach."""

from __future__ import annotations

import re
from functools import partial
from html import unescape
from typing import Any

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.access.issued_credentials import LINK_SECONDS, Sessions
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.console import cookies, pages
from queuey.console.resources import make_console
from queuey.model.errors import NotAuthenticated
from queuey.storage import Store, bridge
from queuey.web.errors import make_path_error, status_of
from queuey.web.responses import Response
from tests.console.browser import Browser
from tests.console.conftest import examine
from tests.replacing import replace
from tests.tenants import KEY
from tests.web.gateway_calls import Reply

FORM = "/console/login/once"
SAME = {"origin": "null", "sec-fetch-site": "same-origin"}
"""Headers of a browser that sends a form of a page without referrer."""
CLIENT_HEADERS = (
    *("x-real-ip", "x-real-port", "x-client-ip", "x-clientip", "client-ip", "x-cluster-client-ip"),
    *("true-client-ip", "forwarded-for", "x-forwarded", "x-original-forwarded-for", "x-original-host"),
    *("x-proxyuser-ip", "wl-proxy-client-ip", "proxy-client-ip", "x-remote-ip", "x-remote-addr"),
    *("cf-connecting-ip", "cf-ray", "cf-visitor", "cdn-loop", "fastly-client-ip", "fastly-ff", "fly-client-ip"),
    *("do-connecting-ip", "akamai-origin-hop", "cloudfront-viewer-address", "x-amz-cf-id", "x-amzn-trace-id"),
    *("x-appengine-user-ip", "x-azure-clientip", "x-azure-socketip", "x-envoy-external-address"),
    *("x-arr-clientcert", "x-nf-client-connection-ip", "x-varnish", "x-vercel-forwarded-for"),
)
"""What nginx, Apache, HAProxy, IIS, WebLogic, Varnish, Envoy, balancers and content networks add to a request."""


@pytest.fixture
def local(store: Store) -> App:
    """The application with the console that ``auto`` serves."""
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY), note="made by queuey serve"))
    return make_app(store, includes=[make_console(examine, is_local=True)])


@pytest.fixture
def token(local: App) -> str:
    """Returns a token as the terminal shows it."""
    return bridge.run(local.service.sessions.make_link(digest_of(KEY)))


def use_link_token(browser: Browser, token: str, **headers: str) -> Reply:
    return browser.post(FORM, {"token": token}, SAME | headers)


def test_a_link_logs_in_once(local: App, token: str) -> None:
    """Its page has one button and sends no referrer; the form begins a session of the key, and works only once."""
    browser = Browser(local)
    shown = browser.get(f"{FORM}/{token}")
    assert shown.status == 200
    assert [value for name, value in shown.all_headers if name.lower() == "referrer-policy"] == ["no-referrer"]
    assert (shown.headers["Cache-Control"], browser.cookies) == ("no-store", {})
    [form] = re.findall(r"<form.*?</form>", shown.text, re.DOTALL)
    assert f'action="{FORM}"' in form
    assert f'name="token" value="{token}"' in form
    assert form.count("<button") == 1
    reply = use_link_token(browser, token)
    assert (reply.status, reply.headers["Location"], set(browser.cookies)) == (
        303,
        "/console",
        {cookies.SESSION_COOKIE},
    )
    assert "key of queuey" in browser.get().text
    other = Browser(local)
    again = use_link_token(other, token)
    assert (again.status, "used before" in again.text, cookies.SESSION_COOKIE in other.cookies) == (403, True, False)
    assert 'name="key"' in again.text


def test_a_login_by_link_is_recorded(local: App, token: str) -> None:
    """The audit log names the key that has logged in, and no token."""
    browser = Browser(local)
    use_link_token(browser, token)
    log = unescape(browser.get("/console/a/queuey/_audit").text)
    assert "log-in" in log
    assert re.search(r"key \w+ of queuey \(made by queuey serve\)", log)
    assert token not in log


def test_a_link_expires(store: Store) -> None:
    """A link is valid for five minutes."""
    now = 1000.0
    sessions = Sessions(store, lambda: now)
    early, late = bridge.run(sessions.make_link(b"d" * 32)), bridge.run(sessions.make_link(b"d" * 32))
    now += LINK_SECONDS - 1
    assert bridge.run(sessions.redeem(early)) == b"d" * 32
    now += 1
    with pytest.raises(NotAuthenticated):
        bridge.run(sessions.redeem(late))


def test_tokens_cannot_be_guessed(local: App, token: str) -> None:
    """A token has 128 random bits; after twenty guesses of an address no link logs it in, and a key does."""
    assert re.fullmatch("[A-Za-z0-9_-]{22}", token)
    assert bridge.run(local.service.store.ledger.entry(f"console link {token}", 0)) is None
    browser = Browser(local)
    for number in range(30):
        assert browser.get(f"{FORM}/{number:022}").status == 200
    assert [use_link_token(browser, f"{number:022}").status for number in range(20)] == [403] * 20
    refused = use_link_token(browser, token)
    assert (refused.status, cookies.SESSION_COOKIE in browser.cookies) == (429, False)
    assert int(refused.headers["Retry-After"]) >= 1
    assert browser.log_in(KEY).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "null"},
    ],
)
def test_forms_of_other_sites(local: App, token: str, headers: dict[str, str]) -> None:
    """A page of another site cannot log a browser in, and does not spend the link."""
    browser = Browser(local)
    reply = browser.post(FORM, {"token": token}, headers)
    assert (reply.status, "another site" in reply.text, browser.cookies) == (403, True, {})
    assert use_link_token(browser, token).status == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "localhost@evil.example"},
        {"host": ""},
        {"forwarded": "for=10.0.0.1"},
        {"x-forwarded-for": "127.0.0.1"},
        {"x-forwarded-anything": ""},
        {"via": "1.1 proxy"},
        {"cf-ray": "é"},
    ],
)
def test_only_browsers_on_this_machine(local: App, token: str, headers: dict[str, str]) -> None:
    """Under another name, as after DNS rebinding, and through a proxy the console is a 404 like any other."""
    browser = Browser(local)
    assert use_link_token(browser, bridge.run(local.service.sessions.make_link(digest_of(KEY)))).status == 303
    addresses = ("/console", "/console/", "/console/login", f"{FORM}/{token}", "/console/a/queuey", "/console/health")
    for path in (*addresses, pages.file_address("console.css"), "/console/nowhere"):
        reply = browser.get(path, headers=headers)
        error = make_path_error(path)
        assert (reply.status, reply.json["error_msg"]) == (status_of(error), {"NotFound": str(error)})
    assert use_link_token(browser, token, **headers).status == 404
    assert browser.get("/__heartbeat__", headers=headers).status == 200
    assert use_link_token(browser, token).status == 303


def test_headers_that_proxies_add(local: App) -> None:
    """A request with any header that proxies add to requests of other machines gets no page of the console."""
    browser = Browser(local)
    headers: list[dict[str, str]] = [{name: "203.0.113.9"} for name in CLIENT_HEADERS]
    assert [browser.get("/console/login", headers=each).status for each in headers] == [404] * len(headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:65535", "[::1]", "[::1]:5000"])
def test_names_of_this_machine(local: App, host: str) -> None:
    """Each name of this machine leads to the console, at any port."""
    assert Browser(local, host).get("/console/login").status == 200


def test_no_log_has_the_token(local: App, token: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even a defect writes it down, nor do the metrics."""
    render = pages.render

    def fail(*given: Any, **more: Any) -> Response:  # noqa: ANN401 - as it gets them
        if given[1] == "once.html":
            raise RuntimeError("a defect")
        return render(*given, **more)

    caplog.set_level("DEBUG")
    browser = Browser(local)
    with replace(pages.render, fail), replace(Sessions.redeem, partial(fail, None, "once.html")):
        replies = [browser.get(f"{FORM}/{token}"), use_link_token(browser, token)]
    assert [(reply.status, token in reply.text) for reply in replies] == [(500, False)] * 2
    assert caplog.text.count("crash ") == 2
    assert FORM in caplog.text
    assert token not in caplog.text + browser.get("/metrics").text
