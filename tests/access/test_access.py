"""Who may do what: credentials, principals, public queues, and isolation of applications."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.access.credentials.readers import digest_of
from queuey.app.service import App
from queuey.model.errors import InvalidRequest
from queuey.model.messages import QueueSpec, Scope
from queuey.model.rights import matches
from queuey.queues.queues import Queues
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

ID = "0123456789ab11e88000000000000001"


def test_refusals_name_the_scheme(owner: Caller, anonymous: Caller, guest: Caller) -> None:
    """401 names the accepted schemes; without a credential the form of the header is told; 403 is plain text."""
    owner.create("q")
    owner.create("public", type="public")
    wrong = Caller(owner.app, "Application x")
    for caller, path, name in ((wrong, "q", "InvalidApplicationKey"), (anonymous, "q/info", "NoCredential")):
        reply = caller.get(path)
        assert (reply.status, list(reply.errors)) == (401, [name])
        assert reply.headers["WWW-Authenticate"] == 'Application realm="queuey"'
    assert wrong.get("public").status == 401
    for reply in (anonymous.get("q"), anonymous.get("q/info")):
        assert "This needs a credential. Send the header Authorization: Application KEY" in reply.text
    refused = guest.get("q")
    assert refused.headers["Content-Type"].startswith("text/plain")
    assert ("Access was denied" in refused.text, "Authorization" in refused.text) == (True, False)


@pytest.mark.parametrize("header", [KEY, f"application {KEY}", f"Token {KEY}", f"{KEY};", "Basic cTp4"])
def test_a_header_without_a_known_scheme_is_named(owner: Caller, header: str) -> None:
    """On every resource the refusal says that the scheme is missing, and shows the form of the header, not the key."""
    owner.create("q")
    caller = Caller(owner.app, header)
    replies = [
        *(caller.get("q"), caller.get(), caller.get("q/info"), caller("POST", "q/claims"), caller.get("/v1/@all")),
        caller.send_json("POST", "_read", {"queues": [{"queue_name": "q"}]}),
    ]
    assert [reply.status for reply in replies] == [403, 403, 401, 401, 401, 200]
    for reply in replies:
        assert "has no scheme that is known here" in reply.text
        assert "Authorization: Application KEY" in reply.text
        assert KEY not in reply.text


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Application {KEY}", 200),
        (f"Application {KEY};Application {GUEST_KEY}", 200),
        (f"Application {GUEST_KEY}", 403),
        (f"application {KEY}", 403),
        ("Application x", 401),
        (f"Application {KEY};Application x", 401),
        ("Application é\U0001f600", 400),
        (";".join(["Application x"] * 17), 401),
    ],
)
def test_authorization_header(app: App, owner: Caller, header: str, status: int) -> None:
    """Keys are looked up exactly as given; other schemes are ignored; one bad key spoils the rest."""
    owner.create("q")
    reply = Caller(app, header.encode().decode("latin-1")).get("q")
    assert reply.status == status
    if status == 401:
        assert list(reply.errors) == ["InvalidApplicationKey"]


def test_order_of_checks(owner: Caller, app: App, guest: Caller) -> None:
    """First the queue, then ids in the path, then the credential, then the permission, then the rest."""
    owner.create("q")
    wrong = Caller(app, "Application x")
    assert wrong("POST", "/v1/nobody/q/", "").status == 404
    assert wrong.get("unknown", limit=0).status == 404
    assert wrong("PUT", "q/zzz", "").status == 400
    assert wrong("PUT", f"q/{ID}", "").status == 401
    assert wrong.get("q", limit=0).status == 401
    assert guest("PUT", f"q/{ID}", "").status == 403
    assert guest.get("q", limit=0).status == 403
    assert owner.get("q", limit=0).status == 400


def test_a_new_key_works_at_once(store: Store, app: App) -> None:
    """A refusal is not remembered: a key added later works at the next request."""
    caller = Caller(app, "Application new")
    assert caller.get().status == 401
    bridge.run(store.applications.add_key("queuey", digest_of("new")))
    assert caller.get().status == 200


# Lists of queues with keys that are limited to some of them


NAMES = ["".join(letters) for length in (1, 2, 3) for letters in itertools.product("aé*", repeat=length)]
NUMBERS = itertools.count()


def make_limited_caller(app: App, store: Store, *patterns: str) -> Caller:
    secret = f"limited{next(NUMBERS)}"
    bridge.run(store.applications.add_key("queuey", digest_of(secret), scope=Scope(("measure",), patterns)))
    return Caller(app, f"Application {secret}")


@pytest.fixture
def many(app: App, store: Store) -> App:
    for name in NAMES:
        bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))
    return app


@given(
    patterns=st.lists(st.text("aé*", min_size=1, max_size=3), min_size=1, max_size=4),
    start=st.text("aé*", max_size=2),
    limit=st.integers(1, 7),
)
def test_pages_have_what_matches(many: Any, store: Store, patterns: list[str], start: str, limit: int) -> None:  # noqa: ANN401
    """Page after page shows each queue that matches once, by name, and names no other, also not as the next."""
    caller = make_limited_caller(many, store, *patterns)
    listed: list[str] = []
    following: str | None = start
    while following is not None:
        page = caller.get("", offset=following, limit=limit).json
        names = [queue["queue_name"] for queue in page["queues"]]
        following = page["next"]
        assert page["patterns"] == (["*"] if "*" in patterns else list(dict.fromkeys(patterns)))
        assert len(names) == limit or following is None
        listed += names
    expected = [name for name in NAMES if name >= start and any(matches(pattern, name) for pattern in patterns)]
    assert listed == sorted(expected)


def test_a_list_looks_at_so_many_queues(store: Store, app: App) -> None:
    """Where too many queues do not match, the list is refused; a pattern that begins with text leads straight there."""
    for name in (*(f"a{number:04}" for number in range(2100)), "b-z"):
        bridge.run(store.catalogue.create_queue("queuey", name, QueueSpec()))
    queues = Queues(store, Limits(), max_filtered=1500)
    with pytest.raises(InvalidRequest, match="patterns begin with text"):
        bridge.run(queues.list("queuey", start="", limit=1, patterns=["*-z"]))
    page, following = bridge.run(queues.list("queuey", start="", limit=2, patterns=["*-z", "a0000"]))
    assert ([queue.name for queue in page], following) == (["a0000"], "a0000\0")
    for start, pattern in (("", "b*z"), ("a2000", "*-z")):
        page, following = bridge.run(queues.list("queuey", start=start, limit=1, patterns=[pattern]))
        assert ([queue.name for queue in page], following) == (["b-z"], None)


def test_created_within_the_patterns(app: App, store: Store) -> None:
    """A limited key creates what its patterns match, by name; only one for all queues has names made up."""
    bridge.run(store.applications.add_key("queuey", digest_of("some"), scope=Scope(("admin",), ("a*",))))
    bridge.run(store.applications.add_key("queuey", digest_of("all"), scope=Scope(("admin",), ("a*", "*"))))
    partial, everything = (Caller(app, f"Application {key}") for key in ("some", "all"))
    assert partial.send_form("POST", queue_name="ab").status == 201
    for fields in ({"queue_name": "b"}, {}, {"queue_name": ""}):
        reply = partial.send_form("POST", **fields)
        assert (reply.status, "creates only queues that match a*." in reply.text) == (403, True)
    assert everything.send_form("POST").status == 201
