"""Logging in and out: cookies, forms, refusals, and how long a session lasts."""

from __future__ import annotations

import time

import pytest

from queuey.access.credentials.readers import digest_of
from queuey.access.issued_credentials import SESSION_SECONDS, Sessions
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.console import cookies, pages
from queuey.console.login import own_page
from queuey.console.resources import make_console
from queuey.model.errors import NotAuthenticated
from queuey.storage import Store, bridge
from queuey.web.admission.scheduling import rate_limit_name
from tests.console.browser import Browser
from tests.console.conftest import examine
from tests.tenants import GUEST_KEY, KEY
from tests.web.gateway_calls import Request, serve

SESSION = cookies.SESSION_COOKIE


def test_there_is_no_console_by_default(store: Store) -> None:
    """Without the include its paths lead nowhere."""
    bridge.run(store.applications.create_application("queuey"))
    assert Browser(make_app(store)).get("/console").status == 404


@pytest.mark.parametrize("path", ["/console", "/console/", "/console/a/queuey", "/console/a/queuey/q/messages"])
def test_who_has_not_logged_in_is_asked_to(stranger: Browser, path: str) -> None:
    """A page of the console sends a stranger to the form, and from there back to the page."""
    reply = stranger.get(path, query="x=1")
    assert reply.status == 303
    assert reply.headers["Location"].startswith("/console/login?next=%2Fconsole")
    form = stranger.get("/console/login", query=reply.headers["Location"].partition("?")[2])
    assert form.status == 200
    assert f'value="{path}?x=1"' in form.text or path == "/console/"


def test_a_part_of_a_page_leads_to_the_form(stranger: Browser) -> None:
    """A script gets no form to put into the page: it has the browser open the form."""
    reply = stranger.get_part("/console/a/queuey/q/options")
    assert (reply.status, reply.headers["HX-Redirect"], reply.body) == (401, "/console/login", b"")


@pytest.mark.parametrize(
    ("shown", "following"),
    [
        ("http://localhost:5000/console/a/queuey/q/messages?text=x#top", "/console/a/queuey/q/messages?text=x"),
        ("http://localhost:5000/v1/queuey", ""),
        ("http://[", ""),
    ],
)
def test_a_part_of_a_page_leads_back_to_the_page(stranger: Browser, shown: str, following: str) -> None:
    """After the login the browser is where the script was whose session had ended."""
    reply = stranger.get("/console/a/queuey/q/messages", headers={"hx-request": "true", "hx-current-url": shown})
    assert (reply.status, reply.headers["HX-Redirect"]) == (401, pages.link("login", next=following))


def test_a_link_of_another_site_leaves_an_open_form_alone(stranger: Browser) -> None:
    """A form that is open stays good when another site leads to the login in the same browser."""
    token = stranger.read_form_token("/console/login")
    kept = dict(stranger.cookies)
    reply = stranger.get("/console/login", query="next=/console/health", headers={"sec-fetch-site": "cross-site"})
    assert stranger.cookies == kept
    assert 'content="0;url=/console/login?next=%2Fconsole%2Fhealth"' in reply.text
    assert stranger.post("/console/login", {"form_token": token, "key": KEY}).status == 303


def test_a_link_of_another_site_ends_no_session(browser: Browser) -> None:
    """A request for which a browser withholds its cookie does not delete it; one with an old cookie does."""
    kept, browser.cookies = browser.cookies, {}
    reply = browser.get("/console/a/queuey")
    assert reply.status == 303
    assert "set-cookie" not in {name.lower() for name, _ in reply.all_headers}
    browser.cookies = kept
    assert browser.get("/console/health").status == 200
    browser.cookies = {SESSION: "x" * 43}
    assert browser.get("/console/health").status == 303
    assert browser.cookies == {}


def test_log_in_and_out(stranger: Browser) -> None:
    """A key begins a session, which ends at the logout, also for a copied cookie."""
    reply = stranger.log_in(KEY, next="/console/a/queuey")
    assert (reply.status, reply.headers["Location"]) == (303, "/console/a/queuey")
    assert set(stranger.cookies) == {SESSION}
    assert "key of queuey" in stranger.get("/console/health").text
    copied = Browser(stranger.app)
    copied.cookies = dict(stranger.cookies)
    token = copied.cookies[SESSION]
    assert stranger.post("/console/logout", {"form_token": stranger.read_form_token("/console/health")}).status == 303
    assert stranger.cookies == {}
    assert copied.get("/console/health").status == 303
    copied.cookies = {SESSION: token}
    copied.app = make_app(stranger.app.service.store, includes=[make_console(examine)])
    assert copied.get("/console/health").status == 303


def test_the_cookie_over_https(app: App) -> None:
    """For any host but this machine the cookie has the prefix that keeps it to this host and to https."""
    browser = Browser(app, "queues.example.org")
    assert browser.log_in(KEY).status == 303
    assert set(browser.cookies) == {f"__Host-{SESSION}"}
    assert browser.get("/console/health").status == 200
    browser.cookies = {SESSION: browser.cookies[f"__Host-{SESSION}"]}
    assert browser.get("/console/health").status == 303


@pytest.mark.parametrize(("host", "secure"), [("localhost:5000", False), ("10.0.0.7", True), ("[::1]:80", False)])
def test_attributes_of_the_cookie(app: App, host: str, secure: bool) -> None:  # noqa: FBT001
    """No script reads the cookie, no other site sends it, and it ends with the session."""
    reply = Browser(app, host).log_in(KEY)
    [header] = [value for name, value in reply.all_headers if name == "set-cookie" and "-login=" not in value]
    _, *attributes = header.split("; ")
    assert {"Path=/", "HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert ("Secure" in attributes) is secure
    [age] = [int(one.partition("=")[2]) for one in attributes if one.startswith("Max-Age=")]
    assert SESSION_SECONDS - 60 < age <= SESSION_SECONDS


@pytest.mark.parametrize(
    ("fields", "headers", "words"),
    [
        ({"form_token": "x" * 43}, {"cookie": ""}, "did not send the cookie"),
        ({}, {"origin": "https://evil.example"}, "another site"),
        ({}, {"origin": "null"}, "another site"),
        ({}, {"sec-fetch-site": "same-site"}, "another site"),
        ({}, {"sec-fetch-site": "cross-site"}, "another site"),
        ({}, {"cookie": ""}, "did not send the cookie"),
    ],
)
@pytest.mark.parametrize("path", ["/console/login", "/console/logout"])
def test_forms_of_others_are_refused(
    browser: Browser, path: str, fields: dict[str, str], headers: dict[str, str], words: str
) -> None:
    """A form counts only with a cookie, and from a page of this host."""
    token = browser.read_form_token("/console/login" if path == "/console/login" else "/console/health")
    if path == "/console/logout" and "cookie" in headers:
        headers = {"cookie": "other=1"}
    reply = browser.post(path, {"form_token": token, "key": KEY, **fields}, headers)
    assert reply.status == 403
    assert words in reply.text
    assert browser.get("/console/health").status == 200


@pytest.mark.parametrize("token", ["x" * 43, "", "é"])
def test_a_form_needs_the_token_of_its_cookie(browser: Browser, stranger: Browser, token: str) -> None:
    """A form with another token neither ends nor begins a session: the login form is shown again."""
    reply = browser.post("/console/logout", {"form_token": token})
    assert (reply.status, "another session" in reply.text) == (403, True)
    assert browser.get("/console/health").status == 200
    stranger.read_form_token("/console/login")
    reply = stranger.post("/console/login", {"form_token": token, "key": KEY, "next": "/console/health"})
    assert (reply.status, "another session" in reply.text) == (403, True)
    assert 'name="next" value="/console/health"' in reply.text
    assert SESSION not in stranger.cookies


@pytest.mark.parametrize("key", ["", "wrong", "é", "0" * 64, "<script>alert(1)</script>"])
def test_wrong_keys(stranger: Browser, key: str) -> None:
    """A wrong key begins no session, and the page does not repeat it."""
    reply = stranger.log_in(key)
    assert reply.status == 403
    assert "unknown or was revoked" in reply.text
    assert SESSION not in stranger.cookies
    assert not key or key not in reply.text


def test_expired_and_revoked_keys(store: Store, app: App) -> None:
    """An expired key begins no session, and a session ends with its key."""
    bridge.run(store.applications.add_key("guest", digest_of("9" * 64), expires=time.time() - 1))
    assert Browser(app).log_in("9" * 64).status == 403
    browser = Browser(app)
    assert browser.log_in(GUEST_KEY).status == 303
    [key] = [key for key in bridge.run(store.applications.keys("guest")) if key.expires is None]
    bridge.run(store.applications.revoke_key("guest", key.id))
    browser.app = make_app(store, includes=[make_console(examine)])
    assert browser.get("/console/health").status == 303


def test_a_login_ends_the_session_before(browser: Browser) -> None:
    """Logging in again ends the session before."""
    before = Browser(browser.app)
    before.cookies = dict(browser.cookies)
    assert browser.log_in(GUEST_KEY).status == 303
    assert browser.get("/console/health").status == 200
    assert before.get("/console/health").status == 303


def test_logins_in_two_windows(stranger: Browser) -> None:
    """A login form that is sent after another window has logged in opens its page and keeps the session."""
    form = {"form_token": stranger.read_form_token("/console/login"), "key": KEY, "next": "/console/a/queuey"}
    assert stranger.post("/console/login", form).status == 303
    kept = dict(stranger.cookies)
    for key in (KEY, "wrong"):
        reply = stranger.post("/console/login", form | {"key": key})
        assert (reply.status, reply.headers["Location"]) == (303, "/console/a/queuey")
        assert stranger.cookies == kept


def test_wrong_keys_are_bounded(stranger: Browser) -> None:
    """After twenty wrong keys an address waits, and the page says how long; a right key does not wait."""
    token = stranger.read_form_token("/console/login")
    replies = [stranger.post("/console/login", {"form_token": token, "key": "wrong"}) for _ in range(21)]
    assert [reply.status for reply in replies] == [403] * 20 + [429]
    assert int(replies[-1].headers["Retry-After"]) >= 1
    assert stranger.post("/console/login", {"form_token": token, "key": KEY}).status == 303


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8:0:0:ffff::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("", "", True),
    ],
)
def test_which_addresses_are_counted_as_one(one: str, other: str, together: bool) -> None:  # noqa: FBT001
    """An IPv4 address counts by itself, those of an IPv6 network together: a caller has all of them."""
    assert (rate_limit_name(one) == rate_limit_name(other)) is together


def test_a_session_ends(store: Store) -> None:
    """A session ends after its time, or with its key, whichever comes first."""
    now = 1000.0
    sessions = Sessions(store, lambda: now)
    long, _ = bridge.run(sessions.begin(b"a" * 32))
    short, session = bridge.run(sessions.begin(b"a" * 32, until=1060.0))
    assert session.expires == 1060.0
    assert bridge.run(sessions.find(long)).holder == b"a" * 32
    now = 1061.0
    assert "ended" in refusal(sessions, short)
    assert bridge.run(sessions.find(long)).expires == 1000.0 + SESSION_SECONDS
    now = 1001.0 + SESSION_SECONDS
    assert "ended" in refusal(sessions, long)
    bridge.run(sessions.end("no such token"))


def refusal(sessions: Sessions, token: str) -> str:
    with pytest.raises(NotAuthenticated) as raised:
        bridge.run(sessions.find(token))
    return str(raised.value)


def test_the_store_has_no_token(store: Store) -> None:
    """What a copy of the store has opens no session."""
    token, _ = bridge.run(Sessions(store).begin(b"a" * 32))
    assert bridge.run(store.ledger.entry(f"console session {token}", 0)) is None


def test_a_key_in_a_header_opens_no_page(stranger: Browser) -> None:
    """A page needs a session, not a key in a header: pages of other origins cannot send one."""
    assert stranger.get("/console", headers={"authorization": f"Application {KEY}"}).status == 303


@pytest.mark.parametrize(
    ("address", "leads_to"),
    [
        ("/console/a/shop?from=x%20y", "/console/a/shop?from=x%20y"),
        ("/console/health", "/console/health"),
        ("/console/healthX", "/console"),
        ("/console/a/shop/.hidden", "/console/a/shop/.hidden"),
        ("/console/a/%2e%2e/%2E./v1/", "/console"),
        ("/console/a/x%2f..%2f..%2fv1", "/console"),
        ("//example.org/console/a/x", "/console"),
        ("/console/a/\\example.org", "/console"),
        ("/console/../v1/", "/console"),
        ("javascript:alert(1)", "/console"),
        ("/console/a/x\r\nSet-Cookie: a=b", "/console"),
        ("", "/console"),
    ],
)
def test_a_login_leads_to_pages_of_the_console_alone(address: str, leads_to: str) -> None:
    """No address from outside leads away from the console."""
    assert own_page(address) == leads_to


def test_logins_with_one_key_are_bounded(app: App) -> None:
    """Each login writes to the store: a key has twenty at once, and others do not wait for that."""
    assert [Browser(app).log_in(KEY).status for _ in range(21)] == [303] * 20 + [429]
    assert Browser(app).log_in(GUEST_KEY).status == 303


@pytest.mark.parametrize("scheme", ["Session {token}", "session {token}", "Session {mark}{token}"])
def test_a_session_is_no_credential_of_the_api(browser: Browser, scheme: str) -> None:
    """The token of a session opens nothing of the API, nor does its cookie."""
    token = browser.cookies[SESSION]
    for headers in (
        [("authorization", scheme.format(token=token, mark="0" * 16))],
        [("cookie", f"{SESSION}={token}; __Host-{SESSION}={token}")],
    ):
        request = Request("GET", "/v1/queuey")
        request.headers = [("host", "localhost"), *headers]
        assert serve(browser.app).reply_to(request).status in {401, 403}
