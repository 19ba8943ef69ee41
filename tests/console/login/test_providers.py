"""Logins at an OpenID provider: the way there and back, the user's identity then, and hostile answers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec
import pytest

from queuey.access.credentials import code_flow
from queuey.access.credentials.code_flow import MAX_EXCHANGES
from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.console import cookies, login
from queuey.console.login import MAX_EXCHANGE_RATE, MAX_WRONG_CODE_RATE
from queuey.console.resources import make_console
from queuey.model.messages import QueueSpec
from queuey.model.user_queues import issuer_tag, queue_name, user_name
from queuey.settings import UserIssuer, Users
from queuey.storage import Store, bridge
from queuey.web.admission.rates import Rate
from tests.access.users.issuer import Behaviour
from tests.access.users.provider import OpenIdProvider, patient_providers, providing, read_redirect
from tests.console.acting import act, follow_redirect
from tests.console.browser import Browser
from tests.console.conftest import examine
from tests.contract.samples import eventually
from tests.replacing import replace_in
from tests.tenants import KEY
from tests.web.caller import Caller

PATTERN = "inbox-{user}"
FORM = "/console/login"


@pytest.fixture
def provider() -> Iterator[OpenIdProvider]:
    with providing() as running:
        yield running


@pytest.fixture
def trusted(provider: OpenIdProvider) -> UserIssuer:
    return UserIssuer(
        issuer=provider.root,
        audience=("queuey", "api"),
        keys=provider.url,
        client="queuey",
        queues={PATTERN: ("read", "delete"), "out-{user}": ("send",)},
        roles={"admins": ("read", "claim", "admin"), "watchers": ("measure",)},
    )


@pytest.fixture
def users(trusted: UserIssuer) -> Users:
    return {"queuey": (trusted,)}


@pytest.fixture
def app(store: Store, users: Users) -> App:
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    return assemble_app(store, users)


def assemble_app(store: Store, users: Users, environ: dict[str, str] | None = None) -> App:
    readers, providers = patient_providers(users, environ or {})
    include = make_console(examine, users=users, providers=providers)
    return make_app(store, readers=readers, private=users.keys(), includes=[include])


@pytest.fixture
def browser(app: App) -> Browser:
    return Browser(app)


def begin_login(browser: Browser, provider: OpenIdProvider, following: str = "") -> str:
    html = browser.get(FORM, query=urlencode({"next": following})).text
    [address] = re.findall(rf'href="({FORM}/{issuer_tag(provider.root)}[^"]*)"', html)
    path, _, query = unescape(address).partition("?")
    reply = browser.get(path, query=query)
    assert reply.status == 303, reply.text
    return reply.headers["Location"]


def come_back(browser: Browser, address: str) -> Any:  # noqa: ANN401 - a reply
    """Comes back from the provider as from another site, first without strict cookies; returns the second answer."""
    parts = urlsplit(address)
    stranger = Browser(browser.app, browser.host)
    first = stranger.get(parts.path, query=parts.query)
    assert (first.status, stranger.cookies) == (200, {})
    [again] = re.findall(r'content="0;url=([^"]*)"', first.text)
    path, _, query = unescape(again).partition("?")
    return browser.get(path, query=query)


def log_in(browser: Browser, provider: OpenIdProvider, following: str = "") -> Any:  # noqa: ANN401 - a reply
    return come_back(browser, read_redirect(begin_login(browser, provider, following)))


def inbox(provider: OpenIdProvider, user: str = "ann") -> str:
    return queue_name(PATTERN, user_name(provider.root, user))


def test_a_user_logs_in(browser: Browser, provider: OpenIdProvider) -> None:
    """The whole way: to the provider, back, and on to the page that was wanted, as the user; and out again."""
    reply = log_in(browser, provider, "/console/a/queuey")
    assert (reply.status, reply.headers["Location"]) == (303, "/console/a/queuey")
    assert set(browser.cookies) == {cookies.SESSION_COOKIE}
    assert f"user:{issuer_tag(provider.root)}.ann of queuey" in browser.get("/console/health").text
    [form] = provider.exchanged
    assert form["redirect_uri"] == f"http://localhost:5000{FORM}/{issuer_tag(provider.root)}/back"
    copied = Browser(browser.app)
    copied.cookies = dict(browser.cookies)
    assert browser.post("/console/logout", {"form_token": browser.read_form_token("/console/health")}).status == 303
    assert copied.get("/console/health").status == 303


def test_what_the_provider_is_asked(browser: Browser, provider: OpenIdProvider) -> None:
    """Each login has a state, a nonce and a challenge of its own; all of them are long."""
    first, second = (dict(parse_qsl(urlsplit(begin_login(browser, provider, "/console/a/x")).query)) for _ in range(2))
    assert (first["scope"], first["theme"], first["response_type"]) == ("openid", "dark", "code")
    for name in ("state", "nonce", "code_challenge"):
        assert first[name] != second[name]
        assert len(first[name]) >= 43


@pytest.mark.parametrize("host", ["queues.example.org", "queues.example.org:8443"])
def test_elsewhere_the_way_back_is_https(app: App, provider: OpenIdProvider, host: str) -> None:
    """Behind a proxy that ends TLS the redirect URL begins with https, as the cookie needs it."""
    browser = Browser(app, host)
    assert log_in(browser, provider).status == 303
    assert provider.exchanged[0]["redirect_uri"].startswith(f"https://{host}/console/login/")
    assert set(browser.cookies) == {f"__Host-{cookies.SESSION_COOKIE}"}


def test_a_user_sees_the_own_queue(app: App, browser: Browser, provider: OpenIdProvider) -> None:
    """A user without a role finds the queues of its patterns, and no other."""
    service = app.service
    for name in (inbox(provider), inbox(provider, "bob"), "orders"):
        service.core.run(service.queues.create("queuey", name, QueueSpec()))
    assert log_in(browser, provider).status == 303
    assert browser.get("/console").headers["Location"] == "/console/a/queuey"
    page = browser.get("/console/a/queuey")
    assert page.status == 200
    assert f'<a href="/console/a/queuey/{inbox(provider)}">' in page.text
    sends = queue_name("out-{user}", user_name(provider.root, "ann"))
    assert f'send: <a href="/console/a/queuey/{sends}">' in page.text
    assert "orders" not in page.text
    assert browser.get(f"/console/a/queuey/{inbox(provider)}/messages").status == 200
    for other in (inbox(provider, "bob"), "orders", "nothing"):
        assert browser.get(f"/console/a/queuey/{other}").status == 403


def test_a_role(app: App, browser: Browser, provider: OpenIdProvider) -> None:
    """A user with a role has its verbs with all queues of the application: the same in the console as in the API."""
    service = app.service
    service.core.run(service.queues.create("queuey", "orders", QueueSpec()))
    provider.claims = {"groups": ["staff", "admins"]}
    assert log_in(browser, provider).status == 303
    assert "/console/a/queuey/orders" in browser.get("/console/a/queuey/_queues").text
    assert browser.get("/console/a/queuey/orders/messages").status == 200
    token = provider.issuer.token("ann", groups=["staff", "admins"])
    ann = Caller(app, f"Bearer {token}")
    assert (ann.get("orders").status, ann("POST", "orders", "x").status) == (200, 403)


def test_a_session_has_the_rights_of_the_settings_in_force(
    store: Store, browser: Browser, provider: OpenIdProvider, trusted: UserIssuer, users: Users
) -> None:
    """In another process the session is the same. It loses a role with the setting, and ends with the trust."""
    browser.app.service.core.run(browser.app.service.queues.create("queuey", "orders", QueueSpec()))
    provider.claims = {"groups": "watchers"}
    assert log_in(browser, provider).status == 303
    browser.app = assemble_app(store, users)
    assert browser.get("/console/a/queuey/orders").status == 200
    browser.app = assemble_app(store, {"queuey": (msgspec.structs.replace(trusted, roles={}),)})
    assert browser.get("/console/a/queuey/orders").status == 403
    assert browser.get("/console/health").status == 200
    kept = dict(browser.cookies)
    for other in (
        {},
        {"other": (trusted,)},
        {"queuey": (msgspec.structs.replace(trusted, client=None),)},
        {"queuey": (msgspec.structs.replace(trusted, issuer="https://accounts.example.org"),)},
    ):
        browser.cookies, browser.app = dict(kept), assemble_app(store, other)
        assert browser.get("/console/health").status == 303


def test_a_client_with_a_secret(store: Store, tmp_path: Path) -> None:
    """The secret of a client goes to the provider in the header, encoded as RFC 6749 has it, wherever it comes from."""
    client, secret = "queuey:web", "s3cret/+:\u00e9 %"
    (tmp_path / "secret").write_text(f"{secret}\n", "utf-8")
    with providing(client=client, secret=secret) as provider:
        for place, environ in ((f"file:{tmp_path}/secret", {}), ("env:CLIENT_SECRET", {"CLIENT_SECRET": secret})):
            issuer = UserIssuer(
                issuer=provider.root, audience=client, keys=provider.url, client=client, secret=place, scope="openid x"
            )
            browser = Browser(assemble_app(store, {"queuey": (issuer,)}, environ))
            assert dict(parse_qsl(urlsplit(begin_login(browser, provider)).query))["scope"] == "openid x"
            assert log_in(browser, provider).status == 303
        wrong = Browser(assemble_app(store, {"queuey": (issuer,)}, {"CLIENT_SECRET": "wrong"}))
        reply = log_in(wrong, provider)
        assert (reply.status, "invalid_client" in reply.text) == (403, True)


def test_who_cancels_may_try_again(browser: Browser, provider: OpenIdProvider) -> None:
    """An answer without a login shows the form, with the page to go on to."""
    provider.user = None
    reply = log_in(browser, provider, "/console/health")
    assert (reply.status, "access denied" in reply.text, 'value="/console/health"' in reply.text) == (403, True, True)
    assert provider.exchanged == []
    provider.user = "ann"
    assert log_in(browser, provider).status == 303


@pytest.mark.parametrize(
    ("claims", "headers", "words"),
    [
        ({"nonce": "x" * 43}, {}, "another login"),
        ({"nonce": None}, {}, "another login"),
        ({"iss": "https://evil.example"}, {}, "issuer is not trusted"),
        ({"aud": "other"}, {}, "another audience"),
        ({"aud": "api"}, {}, "another client"),
        ({"azp": "api"}, {}, "another client"),
        ({"sub": None}, {}, "names no user"),
        ({}, {"alg": "none"}, "algorithm"),
        ({}, {"typ": "logout+jwt"}, "another type"),
    ],
)
def test_id_tokens_that_are_refused(
    browser: Browser, provider: OpenIdProvider, claims: dict[str, Any], headers: dict[str, Any], words: str
) -> None:
    """An ID token that is not for this login of this client begins no session."""
    provider.claims, provider.headers = claims, headers
    reply = log_in(browser, provider)
    assert (reply.status, words in reply.text) == (403, True), reply.text
    assert cookies.SESSION_COOKIE not in browser.cookies
    assert "Log in at" in reply.text


def test_a_token_of_another_issuer(store: Store, users: Users, provider: OpenIdProvider) -> None:
    """A token that another issuer has made, which is trusted as well, begins no session."""
    with providing() as other:
        second = msgspec.structs.replace(users["queuey"][0], issuer=other.root, keys=other.url, queues={})
        browser = Browser(assemble_app(store, {"queuey": (users["queuey"][0], second)}))
        provider.issuer = other.issuer
        reply = log_in(browser, provider)
        assert (reply.status, "another issuer" in reply.text) == (403, True)
        assert log_in(browser, other).status == 303


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"iss": "https://evil.example"}, "another provider"),
        ({"code": None}, "without a code"),
        ({"code": "wrong"}, "invalid_grant"),
        ({"error": "<b>server_error"}, "&lt;b&gt;server_error"),
        ({"state": "x"}, "not begun by this browser"),
        ({"state": "x" * 7000}, "not begun by this browser"),
    ],
)
def test_answers_that_are_refused(
    browser: Browser, provider: OpenIdProvider, fields: dict[str, str | None], words: str
) -> None:
    """An answer that does not belong to this login begins no session, and shows the form."""
    provider.answer_fields = fields
    reply = log_in(browser, provider)
    assert (reply.status, words in reply.text) == (403, True), reply.text
    assert cookies.SESSION_COOKIE not in browser.cookies
    provider.answer_fields = {"iss": provider.root}
    assert log_in(browser, provider).status == 303


def test_an_answer_counts_in_its_own_browser_alone(app: App, browser: Browser, provider: OpenIdProvider) -> None:
    """An answer counts only in the browser that began the login: a code that a stranger requested is not exchanged."""
    stolen = read_redirect(begin_login(browser, provider))
    victim = Browser(app)
    reply = come_back(victim, stolen)
    assert (reply.status, "not begun by this browser" in reply.text) == (403, True)
    begin_login(victim, provider)
    assert come_back(victim, stolen).status == 403
    state = parse_qs(urlsplit(read_redirect(begin_login(victim, provider))).query)["state"][0]
    mixed = dict(parse_qsl(urlsplit(stolen).query)) | {"state": state}
    reply = come_back(victim, f"{urlsplit(stolen).path}?{urlencode(mixed)}")
    # The provider refuses it: the verifier is another one.
    assert (reply.status, "invalid_grant" in reply.text) == (403, True)
    assert set(victim.cookies) == {cookies.VISITOR_COOKIE}


def test_a_code_counts_once(app: App, browser: Browser, provider: OpenIdProvider) -> None:
    """The page loaded again leads to the console; a copy of the browser's cookie gets no second session of a code."""
    answer = read_redirect(begin_login(browser, provider))
    copied = Browser(app)
    copied.cookies = dict(browser.cookies)
    assert come_back(browser, answer).status == 303
    reply = come_back(browser, answer)
    assert (reply.status, reply.headers["Location"]) == (303, "/console")
    reply = come_back(copied, answer)
    assert (reply.status, "invalid_grant" in reply.text) == (403, True)
    assert len(provider.exchanged) == 2


def test_an_answer_of_one_provider_counts_for_no_other(store: Store, users: Users, provider: OpenIdProvider) -> None:
    """Each provider has its own redirect URL, where a state of another one is invalid."""
    with providing() as other:
        second = msgspec.structs.replace(users["queuey"][0], issuer=other.root, keys=other.url, queues={})
        browser = Browser(assemble_app(store, {"queuey": (users["queuey"][0], second)}))
        answer = read_redirect(begin_login(browser, provider))
        moved = answer.replace(issuer_tag(provider.root), issuer_tag(other.root))
        reply = come_back(browser, moved)
        assert (reply.status, "not begun by this browser" in reply.text) == (403, True)
        assert other.exchanged == provider.exchanged == []
        assert come_back(browser, answer).status == 303


def test_a_link_of_another_site_begins_no_login(app: App, browser: Browser, provider: OpenIdProvider) -> None:
    """Without the cookie of the form, which other sites cannot have sent, the form is shown."""
    address = f"{FORM}/{issuer_tag(provider.root)}"
    reply = browser.get(address, query="next=/console/health")
    assert (reply.status, 'value="/console/health"' in reply.text) == (200, True)
    assert browser.get(f"{FORM}/nobody").status == 404
    assert browser.get(f"{FORM}/nobody/back", query="again=1").status == 404
    assert browser.get(address, query="next=/console/health").status == 303


@pytest.mark.parametrize("behaviour", ["fail", "grow", "hang"])
def test_a_provider_that_does_not_exchange_codes(
    browser: Browser, provider: OpenIdProvider, users: Users, store: Store, behaviour: Behaviour
) -> None:
    """Whatever it does instead of an answer, the login ends with an error page, and the next one may succeed."""
    answer = read_redirect(begin_login(browser, provider))
    provider.troubled, provider.behaviour = "/token", behaviour
    readers, [login] = patient_providers(users, {})
    browser.app = make_app(store, readers=readers, includes=[make_console(examine, users=users, providers=[login])])
    browser.get(f"{FORM}/{login.tag}")  # The discovery document is cached.
    login._bearer._keys[provider.root].get()  # So are the keys.
    requests = provider.asked
    login.fetch_seconds = 2.0 if behaviour in {"hang", "drip"} else 60.0
    reply = come_back(browser, answer)
    login.fetch_seconds = 60.0  # A successful answer may take that long on a busy machine.
    assert reply.status == (403 if behaviour in {"fail", "redirect"} else 503)
    # A provider whose request was abandoned may count it later. A redirect is not followed.
    assert eventually(lambda: provider.asked == requests + 1)
    assert 'name="key"' in reply.text
    assert cookies.SESSION_COOKIE not in browser.cookies
    provider.troubled = ""
    assert log_in(browser, provider).status == 303


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"id_token": 5}', b'{"id_token": "x"}', b"\xff", b"[" * 90_000]
)
def test_exchanges_that_give_no_token(browser: Browser, provider: OpenIdProvider, content: bytes) -> None:
    """An answer without an ID token begins no session, whatever it is."""
    answer = read_redirect(begin_login(browser, provider))
    provider.troubled, provider.content = "/token", content
    reply = come_back(browser, answer)
    assert (reply.status, 'name="key"' in reply.text) == (403, True)


def test_an_error_with_a_token(browser: Browser, provider: OpenIdProvider) -> None:
    """An answer with another status than 200 begins no session, even with a token that is good."""
    address = begin_login(browser, provider)
    nonce = dict(parse_qsl(urlsplit(address).query))["nonce"]
    answer = read_redirect(address)
    provider.troubled, provider.behaviour = "/token", "fail"
    provider.content = msgspec.json.encode({"id_token": provider.issuer.token("ann", nonce=nonce)})
    assert come_back(browser, answer).status == 403
    provider.behaviour = "serve"
    assert come_back(browser, answer).status == 303


def test_a_provider_that_names_itself_always_does(store: Store, app: App, users: Users) -> None:
    """If the discovery document says that answers name the issuer, one without is refused."""
    with providing() as provider:
        provider.discovery["authorization_response_iss_parameter_supported"] = True
        issuer = msgspec.structs.replace(users["queuey"][0], issuer=provider.root, keys=provider.url)
        browser = Browser(assemble_app(store, {"queuey": (issuer,)}))
        reply = log_in(browser, provider)
        assert (reply.status, "another provider" in reply.text) == (403, True)
        provider.answer_fields = {"iss": provider.root}
        assert log_in(browser, provider).status == 303


@pytest.mark.parametrize(
    ("module", "limit", "least", "wrong", "statuses"),
    [
        (code_flow, MAX_EXCHANGES, 0, {}, [503]),
        (login, MAX_EXCHANGE_RATE, Rate(5, 1), {}, [303, 429]),
        (login, MAX_WRONG_CODE_RATE, Rate(5, 1), {"code": "wrong"}, [403, 429]),
    ],
    ids=["at once", "of all", "of an address"],
)
def test_what_a_provider_is_asked_is_bounded(
    store: Store,
    users: Users,
    provider: OpenIdProvider,
    module: Any,  # noqa: ANN401
    limit: object,
    least: object,
    wrong: dict[str, str | None],
    statuses: list[int],
) -> None:
    """Few codes at once, few in all, and fewer wrong ones of an address, whatever its cookies; keys still log in."""
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    with replace_in(module, limit, least):
        app = assemble_app(store, users)
    stop_clock(app)
    provider.answer_fields = wrong
    replies = []
    for number, _ in enumerate(statuses):
        provider.user = f"user {number}"
        replies.append(log_in(Browser(app), provider))
    assert [reply.status for reply in replies] == statuses
    assert replies[-1].headers["Retry-After"] == "1"
    assert len(provider.exchanged) == len(statuses) - 1
    assert Browser(app).log_in(KEY).status == 303


def stop_clock(app: App) -> None:
    """Counts logins as if no time passed."""
    views = app.endpoints["console.back"].view("GET").handler.__self__  # type: ignore[attr-defined] # a method
    for bound in (views._of_browser, views._of_address, views._of_provider, views._of_user):
        bound.clock = lambda: 0.0


def test_a_browser_with_wrong_codes_is_slowed_down(browser: Browser, provider: OpenIdProvider) -> None:
    """The provider is asked about twenty wrong codes of a browser; others of its address log in all the time."""
    stop_clock(browser.app)
    provider.answer_fields = {"code": "wrong"}
    replies = [log_in(browser, provider) for _ in range(22)]
    assert [reply.status for reply in replies] == [403] * 20 + [429] * 2
    assert len(provider.exchanged) == 20
    assert (replies[-1].headers["Retry-After"], 'name="key"' in replies[-1].text) == ("5", True)
    provider.answer_fields = {}
    assert log_in(Browser(browser.app), provider).status == 303


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://127.0.0.1:1"},
        {"authorization_endpoint": "http://accounts.example.org/authorize"},
        {"token_endpoint": None},
        {"token_endpoint": "https://ann:secret@accounts.example.org/token"},
    ],
)
def test_discovery_documents_that_are_refused(
    browser: Browser, provider: OpenIdProvider, change: dict[str, Any]
) -> None:
    """A provider whose document is of another issuer, or has unsafe addresses, logs in no user; keys still do."""
    provider.discovery |= change
    browser.get(FORM)
    reply = browser.get(f"{FORM}/{issuer_tag(provider.root)}")
    assert (reply.status, "cannot be asked" in reply.text, 'name="key"' in reply.text) == (503, True, True)
    assert browser.log_in(KEY).status == 303


def test_acts_of_a_user(app: App, browser: Browser, provider: OpenIdProvider, store: Store) -> None:
    """A user's act is in the audit log under the user's name; a key that a user creates ends with the session."""
    app.service.core.run(app.service.queues.create("queuey", "orders", QueueSpec()))
    provider.claims = {"groups": ["admins"]}
    assert log_in(browser, provider).status == 303
    page = follow_redirect(browser, act(browser, "/console/a/queuey/orders/acts/purge-queue", typed="orders"))
    assert f"user:{issuer_tag(provider.root)}.ann" in page
    address = "/console/a/queuey/_acts/key-add"
    refused = act(browser, address, read="yes", queues="orders", expires="9h")
    assert (refused.status, "Later than the end of your own" in refused.text) == (400, True)
    assert act(browser, address, send="yes", queues="orders", expires="1h").status == 403
    assert act(browser, address, read="yes", queues="orders", expires="1h").status == 200
    ends = [key.expires for key in bridge.run(store.applications.keys("queuey"))]
    assert any(end is not None and end < time.time() + 3700 for end in ends)
    assert f"user:{issuer_tag(provider.root)}.ann" in browser.get("/console/a/queuey/_audit").text
    provider.claims = {}
    assert log_in(browser, provider).status == 303
    assert browser.get(address).status == 403
    assert browser.get(f"/console/a/queuey/{inbox(provider)}/acts/purge-queue").status in {403, 404}


def test_logins_of_one_user_are_bounded(browser: Browser, provider: OpenIdProvider) -> None:
    """Each login writes to the store: a user has twenty at once, and others do not wait for that."""
    stop_clock(browser.app)
    assert [log_in(browser, provider).status for _ in range(23)] == [303] * 20 + [429] * 3
    provider.user = "bob"
    assert log_in(browser, provider).status == 303
