"""Members of a group over HTTP: their requests, what is refused, and who may see what."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import time
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from queuey.access.credentials.members import PresentRights, credential_of
from queuey.access.credentials.readers import ApplicationKeys, Identity, digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.groups.groups import GroupUseCases
from queuey.model.rights import Caller as Known
from queuey.model.rights import Grant, parse_scope
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.replacing import replace
from tests.web.caller import Caller, Reply, Tokens, limited_caller
from tests.web.gateway_calls import Request, held_quotas, make_runner, until

ZERO = "00000000000010008080808080808080"


class Member:
    """A member of a group, by default ``g``; it joins when it is made, which must succeed."""

    def __init__(self, caller: Caller, group: str = "g", **fields: Any) -> None:  # noqa: ANN401 - of the request
        self.caller = caller
        self.group = group
        self.joined = caller.send_json("POST", f"_groups/{group}/members", {"queues": ["q"], **fields})
        assert self.joined.status == 201, self.joined
        self.id = self.joined.json["member"]
        self.owned: dict[str, dict[str, int]] = {}

    def send_heartbeat(self, caller: Caller | None = None, **fields: Any) -> Reply:  # noqa: ANN401 - of the request
        """Sends a heartbeat with what the member owns, and adds what it takes if the answer is 200."""
        path = f"_groups/{self.group}/members/{self.id}"
        reply = (caller or self.caller).send_json("POST", path, {"owned": self.owned, **fields})
        for queue, taken in (reply.json.get("take", {}) if reply.status == 200 else {}).items():
            mine = self.owned.setdefault(queue, {})
            mine |= {number: each["epoch"] for number, each in taken.items()}
        return reply

    def commit(self, offset: str = ZERO, caller: Caller | None = None, **fields: Any) -> Reply:  # noqa: ANN401
        commits = {"1": {"epoch": self.owned["q"]["1"], "offset": offset, **fields}}
        content = {"member": self.id, "commits": commits}
        return (caller or self.caller).send_json("PUT", f"q/offsets/{self.group}", content)


@pytest.fixture
def member(owner: Caller) -> Member:
    """A member that owns the only partition of the queue ``q``."""
    owner.create("q")
    member = Member(owner)
    member.send_heartbeat(wait=1)
    assert member.owned["q"].keys() == {"1"}
    return member


def test_commits_of_a_member(owner: Caller, member: Member) -> None:
    """Commits are recorded under their epoch; the note comes with the partition; others get 409, deletions too."""
    key = owner.post("q", "x")["key"]
    note = base64.b64encode(b"tried once").decode()
    assert member.commit(key, note=note).json["partitions"] == {"1": {"offset": key}}
    plain = {"partitions": {"1": {"offset": key}}}
    refused = (
        owner.send_json("PUT", "q/offsets/g", plain),
        owner("DELETE", "q/offsets/g"),
        owner("DELETE", "_groups/g"),
    )
    assert [(each.status, *each.errors) for each in refused] == [(409, "GroupActive")] * 3
    member.owned["q"]["1"] -= 1
    late = member.commit(key)
    assert (late.status, *late.errors, late.json["not_owned"]) == (409, "NotOwner", [1])
    assert owner("DELETE", f"_groups/g/members/{member.id}").status == 200
    again = Member(owner)
    taken = again.send_heartbeat(wait=1).json["take"]["q"]["1"]
    assert (taken["offset"], taken["from"], taken["note"]) == (key, "given back", note)
    owner("DELETE", f"_groups/g/members/{again.id}")
    assert owner.send_json("PUT", "q/offsets/g", plain).status == 200
    assert owner("DELETE", "_groups/g").status == 200
    assert owner.get("_groups/g").status == 404
    assert owner("DELETE", "q/offsets/g").status == 200


def test_another_credential_is_nobody(owner: Caller, member: Member, store: Store, guest: Caller) -> None:
    """The id alone is worth nothing: heartbeat, commit and leave are 404, and the member stays."""
    for other in (limited_caller(owner, store), limited_caller(owner, store, "read,claim", "q"), guest):
        replies = (member.send_heartbeat(other), other("DELETE", f"/v1/queuey/_groups/g/members/{member.id}"))
        assert [(each.status, *each.errors) for each in replies] == [(404, "MemberGone")] * 2
        assert member.commit(caller=other).status == (403 if other is guest else 404)
    assert member.send_heartbeat().status == 200
    assert member.commit().status == 200


def test_a_user_stays_a_member_with_another_token(store: Store, owner: Caller) -> None:
    """The same user with another token is the same member; another user is not."""
    tokens = Tokens()
    app = make_app(store, readers=[tokens])
    role = Grant("queuey", frozenset({"read", "claim"}))
    for token, name in (("old", "user:ann"), ("new", "user:ann"), ("other", "user:bob")):
        tokens.known[token] = Identity(frozenset({name}), (role,), name, time.time() + 3600 + len(token))
    owner.create("q")
    old, new, other = (Caller(app, f"Token {token}") for token in ("old", "new", "other"))
    ann = Member(old)
    assert ann.send_heartbeat(wait=1).json["take"]["q"].keys() == {"1"}
    assert [ann.send_heartbeat(new).status, ann.commit(caller=new).status, ann.send_heartbeat(other).status] == [
        200,
        200,
        404,
    ]


def test_rights_as_they_are_now(store: Store) -> None:
    """A key has the rights of its row, none once revoked or expired; a user has those of the token."""
    bridge.run(store.applications.create_application("queuey"))
    grant = Grant("queuey", frozenset({"read", "claim"}), ("q",))
    now = [1000.0]
    rights = PresentRights(ApplicationKeys(store.applications), lambda: now[0])
    keys = [
        bridge.run(store.applications.add_key("queuey", digest_of("plain"))),
        bridge.run(
            store.applications.add_key(
                "queuey", digest_of("narrow"), scope=parse_scope(["read", "claim"], ["q"]), expires=1001.0
            )
        ),
    ]
    plain = credential_of([digest_of("plain")], Known(frozenset({"app:queuey"}), (), "app:queuey"))
    narrow = credential_of([digest_of("narrow")], Known(frozenset(), (grant,), "x", 1001.0))
    both = credential_of([digest_of("plain")], Known(frozenset({"app:queuey", "user:ann"}), (grant,), "x"))
    user = credential_of([], Known(frozenset({"user:ann"}), (), "x"))
    assert [bridge.run(rights(each)) for each in (plain, narrow, both, user)] == [plain, narrow, both, user]
    wider = msgspec.structs.replace(narrow, caller=plain.caller)
    assert bridge.run(rights(wider)) == narrow
    now[0] = 1001.0
    bridge.run(store.applications.revoke_key("queuey", keys[0].id))
    assert [bridge.run(rights(each)) for each in (plain, narrow, both, user)] == [None, None, None, user]


def test_the_group_shows_no_ids(owner: Caller, member: Member, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Nor do logs, metrics and errors; a caller that sees one queue sees nothing of the others and of their members."""
    owner.create("hidden")
    other = Member(owner, queues=["hidden"], instance="w2", name="vm-2")
    other.send_heartbeat(wait=3)
    shown = owner.get("_groups/g", lag=1).json
    assert [(each["name"], each["instance"], each["state"]) for each in shown["members"]] == [
        ("#1", "", "present"),
        ("vm-2", "w2", "present"),
    ]
    assert (shown["queues"]["q"]["1"]["owner"], shown["queues"]["q"]["1"]["lag"]) == (1, 0)
    assert owner.get("_groups").json["groups"] == ["g"]
    partial = limited_caller(owner, store, "measure", "q").get("_groups/g").json
    assert (partial["queues"].keys(), [each["number"] for each in partial["members"]]) == ({"q"}, [1])

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.DEBUG), replace(GroupUseCases.heartbeat, fail):
        crashed = member.send_heartbeat()
    secrets = [each.id.partition("-")[2] for each in (member, other)]
    texts = [
        caplog.text,
        crashed.text,
        owner.get("_groups/g").text,
        owner.get("/metrics").text,
        member.send_heartbeat().text,
    ]
    assert crashed.status == 500
    assert "v1.member" in texts[3]
    assert [secret for secret in secrets for text in texts if secret in text] == []


@pytest.mark.parametrize(
    ("fields", "bad"),
    [
        ({}, "queues"),
        ({"queues": ["q", 5]}, "queues.1"),
        ({"queues": [""]}, "queues.0"),
        ({"patterns": ["*"] * 21}, "patterns"),
        ({"patterns": ["x" * 101]}, "patterns.0"),
        ({"queues": ["q"], "session": 2.9}, "session"),
        ({"queues": ["q"], "revoke": 3601}, "revoke"),
        ({"queues": ["q"], "grace": 86401}, "grace"),
        ({"queues": ["q"], "instance": "x" * 101}, "instance"),
        ({"queues": ["q"], "name": "x" * 101}, "name"),
    ],
)
def test_bad_joins(owner: Caller, fields: dict[str, Any], bad: str) -> None:
    """Each bad field is named, and no member has joined."""
    owner.create("q")
    reply = owner.send_json("POST", "_groups/g/members", fields)
    assert (reply.status, list(reply.errors)) == (400, [bad])
    assert owner.get("_groups").json["groups"] == []


def test_rights_to_join(owner: Caller, store: Store, guest: Caller, anonymous: Caller) -> None:
    """403 names the missing right; of queues that are not there only whose names the rights cover can be joined."""
    owner.create("q")
    owner.create("shared", principals="app:guest=read")
    join = "/v1/queuey/_groups/g/members"
    reader, claimer = limited_caller(owner, store, "read", "q"), limited_caller(owner, store, "claim", "q")
    for caller, needs in ((reader, "claim"), (claimer, "read")):
        reply = caller.send_json("POST", join, {"queues": ["q"]})
        assert (reply.status, f"needs {needs}" in reply.text) == (403, True), reply
        assert caller.send_json("POST", join, {"patterns": ["q*"]}).status == 403
    worker = limited_caller(owner, store, "read,claim", "q,jobs-*")
    attempts: list[tuple[Caller, dict[str, list[str]], int]] = [
        (worker, {"queues": ["q", "jobs-new"]}, 201),
        (worker, {"queues": ["q", "shared"]}, 403),
        (worker, {"queues": ["other"]}, 404),
        (worker, {"patterns": ["jo?s-*"]}, 201),
        (worker, {"patterns": ["r*"]}, 403),
        (worker, {"patterns": ["jo?s-*", "r*"]}, 403),
        (worker, {"queues": ["q"], "patterns": ["r*"]}, 403),
        (guest, {"queues": ["shared"]}, 403),
        (guest, {"queues": ["invented"]}, 403),
        (guest, {"patterns": ["*"]}, 403),
        (anonymous, {"queues": ["q"]}, 401),
        (Caller(owner.app, owner.authorization, ""), {"queues": ["q"]}, 404),
    ]
    for caller, fields, status in attempts:
        path = "/v1/nobody/_groups/g/members" if caller.base == "" else join
        assert caller.send_json("POST", path, fields).status == status, (fields, status)


def test_an_administrator_removes_a_member(owner: Caller, store: Store, member: Member) -> None:
    """By its public number, whatever it does: it is gone, and its partition goes to another member as lost."""
    other = Member(owner)
    other.send_heartbeat()
    path = "_groups/g/members/1"
    for allow, queues in (("admin", "q"), ("read,claim", "*"), ("admin", "q*,*q")):
        assert limited_caller(owner, store, allow, queues)("DELETE", path).status == 403
    assert member.send_heartbeat().status == 200
    assert limited_caller(owner, store, "admin", "q,*")("DELETE", path).status == 200
    assert [member.send_heartbeat().status, member.commit().status, owner("DELETE", path).status] == [404] * 3
    assert other.send_heartbeat(wait=5).json["take"]["q"]["1"]["from"] == "lost"
    for number in ("7", "9" * 18, "9" * 19, "\u0663"):
        assert owner("DELETE", f"_groups/g/members/{quote(number)}").status == 404


def test_an_administrator_deletes_a_group_with_members(owner: Caller, store: Store, member: Member) -> None:
    """With ``force`` a group is deleted whatever its members do; one that joins anew has the partition again."""
    epoch = member.owned["q"]["1"]
    assert limited_caller(owner, store, "admin", "q*")("DELETE", "_groups/g", force=1).status == 403
    assert owner("DELETE", "_groups/g").status == 409
    assert owner("DELETE", "_groups/g", force=1).status == 200
    assert [member.send_heartbeat().status, member.commit().status] == [404, 404]
    assert owner.get("_groups/g").status == 404
    again = Member(owner)
    taken = again.send_heartbeat(wait=5).json["take"]["q"]["1"]
    assert (taken["from"], taken["epoch"] > epoch) == ("lost", True)
    assert member.commit().status == 404


def test_a_heartbeat_tells_nothing_of_other_queues(owner: Caller, store: Store, member: Member) -> None:
    """A member that claims foreign partitions gets nothing there, and does not learn whether they exist."""
    owner.create("payroll")
    other = Member(owner, queues=["payroll"])
    epoch = other.send_heartbeat(wait=3).json["take"]["payroll"]["1"]["epoch"]
    thief = Member(limited_caller(owner, store, "read,claim", "q"))
    named = {name: {"1": epoch, "7": 1} for name in ("payroll", "invented")}
    beats: list[dict[str, Any]] = [{"owned": named}, {"given_back": named}, {"owned": named, "given_back": named}]
    for fields in beats:
        answer = thief.send_heartbeat(**fields).json
        assert (answer["take"], answer["give_back"]) == ({}, {})
        assert answer["lost"].get("payroll") == answer["lost"].get("invented")
    content = {"member": thief.id, "epoch": epoch, "commits": {"1": {"offset": ZERO}}}
    assert thief.caller.send_json("PUT", "payroll/offsets/g", content).status == 403
    assert owner.send_json("PUT", "payroll/offsets/g", content).status == 404
    other.send_heartbeat()
    assert owner.get("_groups/g").json["queues"]["payroll"]["1"]["owner"] == 2


def test_bad_heartbeats_and_commits(owner: Caller, member: Member) -> None:
    """Malformed values are named; so is a member's commit without its epoch."""
    for fields, bad in (
        ({"owned": {"q": {"1": -1}}}, "owned"),
        ({"owned": {"q": {"x": 1}}}, "owned"),
        ({"owned": {"q": {str(number): 1 for number in range(10_001)}}}, "owned"),
        ({"given_back": [1]}, "given_back"),
        ({"given_back": {"q": {str(number): 1 for number in range(10_001)}}}, "given_back"),
    ):
        reply = member.send_heartbeat(**fields)
        assert (reply.status, list(reply.errors)) == (400, [bad])
    long = member.send_heartbeat(owned={"x" * (1 << 20): {}})
    assert long.status == 413
    commits: list[tuple[dict[str, Any], set[str]]] = [
        ({"member": member.id, "partitions": {"1": {"offset": ZERO}}}, {"commits", "partitions"}),
        ({"commits": {"1": {"offset": ZERO, "epoch": 1}}}, {"member"}),
        ({"member": member.id, "commits": {"1": {"offset": ZERO}}}, {"commits.1.epoch"}),
        ({"member": member.id, "epoch": 1, "commits": {"1": {}}}, {"commits.1.offset"}),
        ({"member": member.id, "epoch": 1, "commits": {"1": {"offset": ZERO, "note": "x"}}}, {"commits.1.note"}),
        (
            {"member": member.id, "epoch": 1, "commits": {"1": {"offset": ZERO, "note": "A" * 1368 + "AA=="}}},
            {"commits.1.note"},
        ),
    ]
    for content, missing in commits:
        reply = owner.send_json("PUT", "q/offsets/g", content)
        assert (reply.status, set(reply.errors)) == (400, missing)


def test_a_revoked_key_loses_its_partitions(store: Store) -> None:
    """A heartbeat that waits is refused, and its partition is free at once, long before the session is over."""
    bridge.run(store.applications.create_application("queuey"))
    keys = [bridge.run(store.applications.add_key("queuey", digest_of(name))) for name in ("first", "second")]
    now = 0.0
    app = make_app(store, clock=lambda: now)
    Caller(app, "Application second").create("q")
    first, second = (Member(Caller(app, f"Application {name}"), session=300) for name in ("first", "second"))
    first.send_heartbeat(wait=1)
    second.send_heartbeat()
    ended: list[Reply] = []
    waiting = threading.Thread(target=lambda: ended.append(first.send_heartbeat(wait=20)))
    waiting.start()
    bridge.run(store.applications.revoke_key("queuey", keys[0].id))
    now = 6.0
    waiting.join(30)
    assert [each.status for each in ended] == [401]
    taken = second.send_heartbeat(wait=20).json["take"]["q"]["1"]
    assert taken["from"] == "lost"


def test_heartbeats_have_half_of_the_places(app: App, owner: Caller) -> None:
    """One beyond them is answered at once, and its tenant's reads still wait; nothing stays taken."""
    owner.create("q")

    async def work(gateway: Gateway) -> None:
        path = "/v1/queuey/_groups/g/members"
        joins = [await Request("POST", path, b'{"queues": ["q"]}').to(gateway) for _ in range(4)]
        beats = [Request("POST", f"{path}/{join.json['member']}", b'{"wait": 20}') for join in joins]
        tasks = [asyncio.ensure_future(beat.to(gateway)) for beat in beats]
        # One member got the partition, the other one got none.
        await until(lambda: sum(task.done() for task in tasks) == 2)
        assert gateway.polls.heartbeats.held("app:queuey") == 2
        read = asyncio.ensure_future(Request("GET", query="wait=20").to(gateway))
        await until(lambda: gateway.polls.places.held("app:queuey") == 3)
        app.service.stopping.set()
        assert {reply.status for reply in await asyncio.gather(*tasks, read)} == {200}
        assert held_quotas(gateway) == {}
        await app.service.groups.end()

    make_runner(app, waiters=4)(work)
