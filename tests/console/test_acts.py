"""Acts at the console: each asks for confirmation once, does what it says, and is in the audit log with its outcome."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from queuey.access.credentials.readers import digest_of
from queuey.access.operations import QUEUE, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.progress import RecordedOffsets
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.console.acts import APPLICATION_ACTS, MAX_ACT_RATE, QUEUE_ACTS
from queuey.console.acts.operation_act import make_acts
from queuey.console.resources import make_console
from queuey.groups.offsets import OffsetUseCases
from queuey.model.errors import StoreUnavailable
from queuey.model.ids import to_hex
from queuey.model.messages import AUDITS, OffsetChange, QueueSpec, Scope
from queuey.model.rights import VERBS, Caller, Grant, may_create_key, parse_scope
from queuey.operations.audit_log import PAGE_SIZE, AuditLog
from queuey.queues.views import QUEUES_TAG
from queuey.storage import Store, bridge
from tests.console.acting import Q, act, follow_redirect, read_form
from tests.console.browser import Browser, simplify_html
from tests.console.conftest import examine, logged_in
from tests.console.test_pages import text_of
from tests.contract.samples import eventually
from tests.replacing import replace_in
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller as ApiCaller

WORKER_KEY, ADMIN_KEY = "4" * 64, "5" * 64
CLAIM_ACTS = {"rewind", "cancel-job", "retry-job", "delete-group"}
"""Acts for which ``claim`` is enough. Their blank forms are refused with 400."""


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"body": ""}, "body"),
        ({"body": "{", "form": "json"}, "body"),
        ({"body": "x", "partition": "9"}, "partition"),
        ({"body": "x", "headers": "no name"}, "headers"),
        ({"body": "x" * 33_000}, "body"),
    ],
)
def test_a_mistake_keeps_what_was_typed(browser: Browser, owner: ApiCaller, fields: dict[str, str], field: str) -> None:
    """An invalid field is marked; the others keep their text."""
    owner.create("q")
    reply = act(browser, f"{Q}/acts/send", **{"message_key": "kept" if field != "partition" else "", **fields})
    assert reply.status == 400
    assert f"{field}: " in text_of(reply.text)
    assert re.search(rf'name="{field}"[^>]*aria-invalid="true"', reply.text)
    assert field == "partition" or 'value="kept"' in reply.text
    assert owner.get("q/size").json["size"] == 0


def test_a_form_does_it_once(browser: Browser, owner: ApiCaller) -> None:
    """A form that is sent twice leads to what was done the first time."""
    owner.create("q")
    sent = read_form(browser, f"{Q}/acts/send") | {"body": "once"}
    first, second = browser.post(f"{Q}/acts/send", sent), browser.post(f"{Q}/acts/send", sent)
    assert first.headers["Location"] == second.headers["Location"]
    assert owner.get("q/size").json["size"] == 1
    again = browser.post(f"{Q}/acts/send", sent | {"body": "another"})
    assert again.status == 400
    assert "It was sent before, with other contents." in text_of(again.text)
    assert "\nanother</textarea>" in again.text
    assert browser.post(f"{Q}/acts/send", sent | {"act_id": "x"}).status == 400
    assert owner.get("q/size").json["size"] == 1


def test_a_form_of_another_session(browser: Browser, app: App, owner: ApiCaller) -> None:
    """A form belongs to the session for which it was made."""
    owner.create("q")
    sent = read_form(browser, f"{Q}/acts/purge-queue") | {"typed": "q"}
    other = logged_in(app, KEY)
    assert other.post(f"{Q}/acts/purge-queue", sent).status == 403
    assert browser.post(f"{Q}/acts/purge-queue", sent, {"origin": "https://elsewhere.example"}).status == 403


OFFERED = {
    "never claimed": ("keep", {"cancel-job"}),
    "delayed": ("keep", {"cancel-job", "retry-job"}),
    "claimed": ("keep", {"cancel-job"}),
    "retrying": ("keep", {"cancel-job", "retry-job"}),
    "done": ("keep", set[str]()),
    "dead": ("keep", set[str]()),
    "letter": ("delete", set[str]()),
}
"""The states of a message: ``on_ack`` of its queue, and what its page offers."""


@pytest.mark.parametrize("state", OFFERED)
def test_a_page_offers_what_changes_something(browser: Browser, owner: ApiCaller, state: str) -> None:
    """A message offers to cancel its job while it is not finished, and to retry it only if that is sooner."""
    on_ack, offered = OFFERED[state]
    owner.create("q", on_ack=on_ack)
    queue, key = "q", owner.post("q", "a", **({"X-Delay": "600"} if state == "delayed" else {}))["key"]
    if state not in {"never claimed", "delayed"}:
        [job] = owner.claim("q", ttl=600)
        way = "ack" if state == "done" else "release"
        if state != "claimed":
            options: dict[str, dict[str, object]] = {
                "dead": {"retry": False},
                "letter": {"retry": False},
                "retrying": {"delay": 600},
            }
            owner.send_json("POST", f"q/claims/{way}", {"receipts": [job["receipt"]]} | options.get(state, {}))
    if state in {"dead", "letter"}:
        assert eventually(lambda: owner.get("q.dead/size").json.get("size") == 1)
    if state == "letter":
        queue, [letter] = "q.dead", owner.get("q.dead?delay=false").json["messages"]
        key = letter["message_id"]
    page = browser.get(f"{Q.rpartition('/')[0]}/{queue}/messages/1:{key}").text
    assert {name for name in ("cancel-job", "retry-job") if f"/acts/{name}?message=" in page} == offered


def test_a_message_is_given_up(browser: Browser, owner: ApiCaller) -> None:
    """A claimed message can become a dead letter; where there is nothing to release or delete, that is said."""
    owner.create("q")
    place = f"message=1:{owner.post('q', 'a')['key']}"
    assert len(owner.claim("q", ttl=600)) == 1
    page = follow_redirect(browser, act(browser, f"{Q}/acts/release", place, then="dead"))
    assert "it becomes a dead letter" in page
    assert eventually(lambda: owner.get("q.dead/size").json.get("size") == 1)
    assert "nothing was released" in follow_redirect(browser, act(browser, f"{Q}/acts/release", place))
    place = f"message=1:{owner.post('q', 'b')['key']}"
    for said in ("Deleted the message.", "nothing was deleted"):
        assert said in follow_redirect(browser, act(browser, f"{Q}/acts/delete", place))


class Limit(msgspec.Struct):
    most: int
    days: list[str] = []
    strict: bool = False


def test_an_operation_is_offered_without_further_code(app: App, owner: ApiCaller) -> None:
    """An operation of a queue that declares its right has a button, a form with its fields, and an audit entry."""
    calls: list[object] = []

    async def limit(access: QueueAccess, sender: str, body: dict[str, object]) -> Limit:
        calls.append((access.queue.name, sender, body))
        return Limit(9)

    row = declare(
        QUEUES_TAG, f"POST {QUEUE}/limits/{{sender}}", "Limit sender, a day", Limit, limit, "admin", body=Limit
    )

    def add(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
        config.registry.app.operations = [*config.registry.app.operations, (row, limit)]

    browser = logged_in(make_app(app.service.store, includes=[add, make_console(examine)]), KEY)
    owner.create("q")
    address = f"{Q}/acts/limit-sender"
    assert f'href="{address}"' in browser.get(Q).text
    assert act(browser, address, most="7").status == 400
    assert act(browser, address, sender="shop", days="[").status == 400
    given = {"sender": "shop", "most": "7", "days": '["monday"]', "strict": "true"}
    assert "Limit sender: done. most: 9, days: []" in follow_redirect(browser, act(browser, address, **given))
    assert calls == [("q", "shop", {"most": "7", "days": ["monday"], "strict": "true"})]


@pytest.mark.parametrize("name", ["purge-queue", "delete-queue"])
def test_the_name_has_to_be_typed(browser: Browser, owner: ApiCaller, name: str) -> None:
    """Nothing is removed until the name of the queue is typed as it is."""
    owner.create("q")
    owner.post("q", "a")
    address = f"{Q}/acts/{name}"
    assert "about 1" in text_of(browser.get(address).text)
    for typed in ("", "Q", "q "):
        assert act(browser, address, typed=typed).status == 400
    assert owner.get("q/size").json["size"] == 1
    sent = read_form(browser, address) | {"typed": "q"}
    for _ in range(2):  # A form whose answer was lost is sent again.
        page = follow_redirect(browser, browser.post(address, sent))
        assert f"{name.capitalize().replace('-', ' ')}: done." in page
    assert owner.get("q/size").status == (200 if name == "purge-queue" else 404)


def test_options(browser: Browser, owner: ApiCaller) -> None:
    """Changed fields are set, blank ones are reset to their defaults, and the rest stays."""
    owner.create("q", ttl=600, max_deliveries=3)
    address = f"{Q}/acts/options"
    assert read_form(browser, address)["ttl"] == "600"
    assert "No field was edited" in follow_redirect(browser, act(browser, address))
    page = follow_redirect(
        browser, act(browser, address, ttl="", partitions="2", backoff="first=1,most=60", max_claimed="7")
    )
    assert "max_claimed from the default to 7" in page
    assert "ttl from 600 to the default" in page
    assert "Claimed at most 7" in text_of(browser.get(f"{Q}/options").text)
    info = owner.get("q/info").json
    assert info["max_claimed"] == 7
    assert "max_claimed from 7 to the default" in follow_redirect(browser, act(browser, address, max_claimed=""))
    assert (info["partitions"], info["max_deliveries"], info["backoff"]["most"]) == (2, 3, 60)
    reply = act(browser, address, partitions="1")
    assert reply.status == 400
    assert "partitions" in text_of(reply.text)
    assert act(browser, address, partitions="").status == 400


def test_options_that_others_changed(browser: Browser, owner: ApiCaller) -> None:
    """Options that another user has changed since the form was opened stay, with a message if the form sets them."""
    owner.create("q", ttl=600)
    sent = read_form(browser, f"{Q}/acts/options")
    owner.send_form("PUT", "q", ttl=300)
    reply = browser.post(f"{Q}/acts/options", sent | {"partitions": "2"})
    assert "Changed partitions from 1 to 2." in follow_redirect(browser, reply)
    assert owner.get("q/info").json["ttl"] == 300
    late = browser.post(f"{Q}/acts/options", sent | {"ttl": "900", "act_id": "y" * 22})
    assert late.status == 400
    assert "Somebody has changed it meanwhile, to 300" in text_of(late.text)
    assert 'name="type" value="public"' not in browser.get(f"{Q}/acts/options", query="type=public&ttl=1").text
    assert 'name="ttl" value="300"' in browser.get(f"{Q}/acts/options", query="type=public&ttl=1").text


def test_move(browser: Browser, owner: ApiCaller) -> None:
    """A move begins and is cancelled; an impossible one gives the reason."""
    owner.create("q")
    owner.create("target")
    assert act(browser, f"{Q}/acts/move").status == 400
    assert act(browser, f"{Q}/acts/move", to="q").status == 400
    assert act(browser, f"{Q}/acts/move", to="nowhere").status == 404
    page = follow_redirect(browser, act(browser, f"{Q}/acts/move", to="target"))
    move = re.search(r"Move (\S+) from q to target", page)
    assert move is not None
    assert move[1] in follow_redirect(browser, act(browser, f"{Q}/acts/cancel-move", f"move={move[1]}"))
    assert act(browser, f"{Q}/acts/cancel-move", "move=nothing").status == 404


def test_rewind(browser: Browser, owner: ApiCaller) -> None:
    """The table shows what would change; offsets that a worker has recorded since stay as they are."""
    owner.create("q", partitions=2)
    places = [owner.post("q", "a", **{"X-Partition": "1"})["key"] for _ in range(3)]
    offsets = {"partitions": {"1": {"offset": places[2]}}}
    owner.send_json("PUT", "q/offsets/group", offsets)
    address = f"{Q}/acts/rewind"
    assert "Set its offsets" in browser.get_part(f"{Q}/groups").text
    blank = browser.get(address, query="group=group").text
    assert 'method="post" action="/console/a' not in blank
    query = urlencode({"group": "group", "to": places[0], "partition": "1"})
    page = simplify_html(browser.get(address, query=query).text)
    assert re.findall(r"<td><bdi>([^<]*)</bdi></td>", page) == ["1", places[2], places[0], "0", "2"]
    late = read_form(browser, address, query)
    assert "Set 1 offsets" in follow_redirect(browser, act(browser, address, query))
    recorded = owner.get("q/offsets/group").json["partitions"]
    assert recorded["1"]["offset"] == places[0]
    owner.send_json("PUT", "q/offsets/group", {"partitions": {"1": {"offset": places[1]}}})
    reply = browser.post(address, late)
    assert reply.status == 400
    assert "An offset or the number of partitions has changed" in text_of(reply.text)
    follow_redirect(browser, act(browser, address, query))
    assert "All offsets are already there." in text_of(browser.get(address, query=query).text)


def test_a_commit_in_the_middle_of_a_rewind(browser: Browser, owner: ApiCaller) -> None:
    """A rewind sets the offsets that nobody has committed meanwhile; the audit log names the others."""
    owner.create("q", partitions=2)
    for number in ("1", "2"):
        place = owner.post("q", "a", **{"X-Partition": number})["key"]
        owner.send_json("PUT", "q/offsets/group", {"partitions": {number: {"offset": place}}})
    record = OffsetUseCases.record

    async def late(
        self: OffsetUseCases, access: QueueAccess, group: str, changes: Sequence[OffsetChange]
    ) -> RecordedOffsets:
        await record(self, access, group, [OffsetChange(2, (7, 7))])
        return await record(self, access, group, changes)

    with replace_in(OffsetUseCases, record, late):
        page = follow_redirect(browser, act(browser, f"{Q}/acts/rewind", "group=group&to=earliest"))
    assert "Partly done" in page
    assert "Set 1 of 2 offsets" in page
    assert "partitions 2 were changed meanwhile and stay" in page


@pytest.fixture
def worker_browser(app: App, store: Store) -> Browser:
    """A browser whose user may read and claim, but change nothing."""
    bridge.run(store.applications.add_key("queuey", digest_of(WORKER_KEY), scope=parse_scope(["read", "claim"])))
    return logged_in(app, WORKER_KEY)


@pytest.fixture
def admin_browser(app: App, store: Store) -> Browser:
    """A browser with all rights on some of the queues."""
    bridge.run(
        store.applications.add_key("queuey", digest_of(ADMIN_KEY), scope=parse_scope(VERBS, ["q*"]), note="of q")
    )
    return logged_in(app, ADMIN_KEY)


def test_rights(app: App, worker_browser: Browser, owner: ApiCaller) -> None:
    """Acts without the right are not offered, and are refused with the missing right."""
    owner.create("q")
    owner.post("q", "a")
    page = worker_browser.get(Q).text
    assert "/acts/" not in page
    assert "_audit" not in page
    for act_name in (*QUEUE_ACTS, *make_acts(app.operations)):
        reply = worker_browser.get(f"{Q}/acts/{act_name.name}", query="message=1:" + "0" * 32)
        assert (reply.status == 403) == (act_name.name not in CLAIM_ACTS), act_name.name
        sent = {"form_token": worker_browser.read_form_token(Q), "act_id": act_name.name.ljust(22, "x")}
        refused = worker_browser.post(f"{Q}/acts/{act_name.name}", sent)
        assert refused.status == (400 if act_name.name in CLAIM_ACTS else 403)
    for act_name in APPLICATION_ACTS:
        assert worker_browser.get(f"/console/a/queuey/_acts/{act_name.name}").status == 403
    assert "you have the right admin for no queues" in text_of(worker_browser.get("/console/a/queuey/_audit").text)
    assert worker_browser.get("/console/a/queuey/_keys").status == 403


def test_what_needs_a_login(stranger: Browser, operator: Browser, owner: ApiCaller) -> None:
    """Without a login every page of an act leads to one; an operator's key may do nothing."""
    owner.create("q")
    for path in (f"{Q}/acts/purge-queue", "/console/a/queuey/_acts/key-add", "/console/a/queuey/_audit"):
        assert stranger.get(path).status == 303
        assert stranger.post(path, {}).status in {303, 404, 405}
        assert operator.get(path).status == (200 if path.endswith("_audit") else 403)
    assert stranger.get(f"{Q}/acts/nothing").status == 404


def test_audit_log(browser: Browser, admin_browser: Browser, worker_browser: Browser, owner: ApiCaller) -> None:
    """Each act is in the log with its actor; a user who may change some queues sees only their entries."""
    owner.create("q")
    owner.create("other")
    done = act(admin_browser, f"{Q}/acts/send", body="secret body").headers["Location"]
    act(browser, "/console/a/queuey/other/acts/purge-queue", typed="other")
    act(browser, "/console/a/queuey/other/acts/move", to="nowhere")
    whole = text_of(browser.get("/console/a/queuey/_audit").text)
    assert whole.index("not done") < whole.index("purge") < whole.index("(of q)")
    assert "secret body" not in whole
    entries = text_of(admin_browser.get("/console/a/queuey/_audit").text)
    assert "purge" not in entries
    assert "Stored message" in entries
    assert "Actions of others on other queues and on keys are not shown" in entries
    only = browser.get("/console/a/queuey/_audit", query="queue=other").text
    assert "Stored message" not in only
    for other in (browser, admin_browser):
        assert other.get(done).status == 200
    assert worker_browser.get(done).status == 404
    place = owner.post("other", "a")["key"]
    assert browser.get(f"/console/a/queuey/_audit/1:{place}").status == 404


def test_pages_say_nothing_of_what_is_not_seen(
    admin_browser: Browser, worker_browser: Browser, store: Store, app: App
) -> None:
    """A user who sees no entries gets no cursor; for others it is the id of a visible entry, however far back."""
    bridge.run(store.catalogue.create_queue("queuey", "q", QueueSpec()))
    audit: AuditLog = app.service.audit
    places = {}
    for number in range(260):
        queue = "q" if number < 105 else "other"
        begin = audit.begin("queuey", f"{number}", content=b"", act="send", who="w", queue=queue, details={})
        _, sent, _ = app.service.core.run(begin)
        places[to_hex(sent.position)] = queue
    assert 'rel="next"' not in worker_browser.get("/console/a/queuey/_audit").text
    page = admin_browser.get("/console/a/queuey/_audit").text
    assert page.count("<tr") == 1 + PAGE_SIZE
    [address] = re.findall(r'rel="next" href="[^"]*cursor=([^"&]*)[^"]*"', page)
    assert places[address] == "q"
    last = admin_browser.get("/console/a/queuey/_audit", query=f"cursor={address}").text
    assert (last.count("<tr"), 'rel="next"' in last) == (1 + 5, False)


def test_nobody_changes_the_audit_log(browser: Browser, owner: ApiCaller, app: App) -> None:
    """The log is a queue of an application that no key is for."""
    owner.create("q")
    act(browser, f"{Q}/acts/send", body="x")
    of_log = ApiCaller(app, owner.authorization, f"/v1/{AUDITS}")
    assert of_log.get("queuey").status == 403
    assert of_log("DELETE", "queuey/messages", b"").status == 403


def test_no_act_without_an_entry(browser: Browser, owner: ApiCaller) -> None:
    """An act that cannot be logged is not done; the outcome of an interrupted one is unknown."""
    owner.create("q")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away", outcome="none")

    with replace_in(AuditLog, AuditLog.begin, away):
        assert act(browser, f"{Q}/acts/send", body="x").status == 503
    assert owner.get("q/size").json["size"] == 0
    with replace_in(AuditLog, AuditLog.end, away):
        reply = act(browser, f"{Q}/acts/send", body="x")
    assert reply.status == 200
    assert "Stored message" in text_of(reply.text)
    assert "which could not be written: away" in text_of(reply.text)
    assert owner.get("q/size").json["size"] == 1
    page = browser.get("/console/a/queuey/_audit").text
    assert "not known" in page
    entry = browser.get(re.findall(r'href="([^"]*_audit/[^"]*)"', page)[0]).text
    assert "The outcome is not known" in entry
    with replace_in(AuditLog, AuditLog.end, away):
        reply = act(browser, "/console/a/queuey/_acts/key-add", read="yes")
    assert re.search(r">[0-9a-f]{64}</pre>", reply.text)


def test_keys(browser: Browser, app: App, owner: ApiCaller) -> None:
    """A key is made with what was chosen, shown once, and revoked."""
    owner.create("q")
    reply = act(browser, "/console/a/queuey/_acts/key-add", read="yes", queues="q, r*", expires="1h", note="<b>tests")
    assert reply.status == 200
    secret = re.findall(r">([0-9a-f]{64})</pre>", reply.text)[0]
    assert ApiCaller(app, f"Application {secret}").get("q").status == 200
    page = browser.get("/console/a/queuey/_keys").text
    assert "&lt;b&gt;tests" in page
    assert secret not in page + browser.get("/console/a/queuey/_audit").text
    key = re.findall(r"key-revoke\?key=([0-9a-f]+)\">", page[page.index("&lt;b&gt;tests") :])[0]
    assert f"Revoked key {key}." in follow_redirect(
        browser, act(browser, "/console/a/queuey/_acts/key-revoke", f"key={key}")
    )
    assert browser.get("/console/a/queuey/_acts/key-revoke", query=f"key={key}").status == 404


def test_keys_of_a_limited_caller(admin_browser: Browser, store: Store) -> None:
    """A limited user creates keys that are more limited, and neither sees nor revokes others."""
    address = "/console/a/queuey/_acts/key-add"
    every = dict.fromkeys(map(str, VERBS), "yes")
    wrong: list[dict[str, str]] = [
        {"queues": "*", "read": "yes"},
        {"queues": "q*", **every},
        {"queues": "q*"},
        {"queues": " , ", "read": "yes"},
        {"queues": "q*", "read": "yes", "expires": "900d"},
        {"queues": "q*", "read": "yes", "expires": "soon"},
        {"queues": "q*", "read": "yes", "note": "x" * 101},
    ]
    before = len(bridge.run(store.applications.keys("queuey")))
    for fields in wrong:
        assert act(admin_browser, address, **fields).status in {400, 403}, fields
    assert len(bridge.run(store.applications.keys("queuey"))) == before
    assert act(admin_browser, address, queues="q1", **every).status == 200
    page = admin_browser.get("/console/a/queuey/_keys").text
    assert len(re.findall("key-revoke", page)) == 1
    hidden = [key.id for key in bridge.run(store.applications.keys("queuey")) if key.id not in page]
    assert hidden
    for key in hidden:
        assert admin_browser.get("/console/a/queuey/_acts/key-revoke", query=f"key={key}").status == 404


def test_a_key_ends_no_later_than_its_maker(app: App, store: Store) -> None:
    """A key that ends makes only keys that end before it."""
    bridge.run(store.applications.add_key("queuey", digest_of("6" * 64), expires=time.time() + 7200))
    short = logged_in(app, "6" * 64)
    address = "/console/a/queuey/_acts/key-add"
    assert act(short, address, read="yes", expires="3h").status == 400
    assert act(short, address, read="yes", expires="1h").status == 200


@pytest.mark.parametrize(
    ("grant", "scope", "may"),
    [
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("read",), ("q1", "q2*")), True),
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("admin", "read"), ("q1",)), True),
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("admin", "read"), ("q*",)), False),
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("admin", "read"), ("q*", "q1")), False),
        (Grant("a", frozenset({"admin", "measure"}), ("q*",)), Scope(("admin",), ("q*",)), False),
        (Grant("a", frozenset(VERBS), ("q*",)), Scope(VERBS[:-1], ("q*",)), False),
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("read",), ("r",)), False),
        (Grant("a", frozenset({"admin", "read"}), ("q*",)), Scope(("send",), ("q1",)), False),
        (Grant("a", frozenset({"read"}), ("q*",)), Scope(("read",), ("q1",)), False),
        (Grant("b", frozenset(VERBS), ("*",)), Scope(("read",), ("q1",)), False),
        (Grant("a", frozenset(VERBS), "q1"), Scope(("read",), ("q1",)), False),
        (Grant("a", frozenset(VERBS), ("a*z",)), Scope(("read",), ("a*b*z",)), True),
        (Grant("a", frozenset(VERBS), ("a*z",)), Scope(("read",), ("a*",)), False),
        (Grant(None, frozenset({"measure"})), Scope(("measure",), ("q",)), False),
    ],
)
def test_what_may_be_handed_on(grant: Grant, scope: Scope, may: bool) -> None:  # noqa: FBT001
    """A key has fewer rights than its maker, who may change the same queues."""
    assert may_create_key(Caller(grants=(grant,)), "a", scope) == may


def test_own_entries_and_what_was_in_messages(browser: Browser, app: App, store: Store, owner: ApiCaller) -> None:
    """All users see their own acts; contents of messages are shown to those who may read them."""
    owner.create("q", kind="ordered")
    for key, verbs in (("7" * 64, ["send"]), ("8" * 64, ["admin"])):
        bridge.run(store.applications.add_key("queuey", digest_of(key), scope=parse_scope(verbs)))
    sender, admin = logged_in(app, "7" * 64), logged_in(app, "8" * 64)
    done = act(sender, f"{Q}/acts/send", body="x", message_key="secret key").headers["Location"]
    act(browser, f"{Q}/acts/purge-queue", typed="q")
    own = text_of(sender.get("/console/a/queuey/_audit").text)
    assert "Stored message" in own
    assert "purge" not in own
    assert "secret key" in sender.get(done).text
    assert "secret key" in browser.get(done).text
    page = admin.get(done).text
    assert "secret key" not in page
    assert "Contents of messages are not shown" in text_of(page)


def test_counts_are_for_those_who_may_measure(browser: Browser, owner: ApiCaller) -> None:
    """A user who may purge a queue but not measure it is not told how many messages it has."""
    owner.create("q")
    owner.post("q", "a")
    owner.send_form("PUT", "q", principals="app:guest")
    assert browser.get(f"{Q}/acts/purge-queue").status == 200
    assert "about" not in text_of(browser.get(f"{Q}/acts/purge-queue").text)
    assert "Purge queue: done." in follow_redirect(browser, act(browser, f"{Q}/acts/purge-queue", typed="q"))


def test_moves_are_for_those_who_see_them(app: App, owner: ApiCaller) -> None:
    """A reader of a public queue sees no moves to it, and a user who may not delete in the source cannot cancel one."""
    owner.create("secret")
    owner.create("pub", type="public")
    owner.send_json("POST", "_moves", {"from": "secret", "to": "pub"})
    guest = logged_in(app, GUEST_KEY)
    options = text_of(guest.get_part("/console/a/queuey/pub/options").text)
    assert "secret" not in options
    assert "Moves are not shown" in options


def test_acts_are_counted(browser: Browser, owner: ApiCaller) -> None:
    """One caller can only write a limited number of entries at once."""
    owner.create("q")
    sent = read_form(browser, f"{Q}/acts/send") | {"body": "x"}
    statuses = [
        browser.post(f"{Q}/acts/send", sent | {"act_id": f"{number:022}"}).status
        for number in range(2 * MAX_ACT_RATE.burst)
    ]
    assert set(statuses[: MAX_ACT_RATE.burst]) == {303}
    assert 429 in statuses
