"""What a caller may not know changes nothing: two worlds that differ only in that give equal answers.

Both worlds have queues, a group with a member, a schedule and users that the callers of the test may know. The second
one also has what hypothesis draws: queues that no caller may know, with messages, claims, offsets, members of groups,
schedules and moves, and keys and read marks of others. A caller then sends the same requests to both: each operation of
version 1, for queues that it may know, for hidden ones and for missing ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from queuey.access.credentials.readers import Identity, digest_of
from queuey.app.application import make_app
from queuey.app.version_1 import OPERATIONS
from queuey.model.messages import Scope
from queuey.model.rights import VERBS, Grant
from queuey.schedules import schedules
from queuey.storage import Store, bridge
from tests.access.test_access_table import BODIES, QUERIES
from tests.backends import SqliteLocation, prepare_sqlite
from tests.replacing import replace_in
from tests.tenants import GUEST_KEY, KEY
from tests.web.caller import Caller, Reply, Tokens

ID = "0123456789ab11e88000000000000001"
EXAMPLES = settings().max_examples // 30
PHASES = (Phase.explicit, Phase.generate) if EXAMPLES > 1 else (Phase.explicit,)
"""A quick run has only the example below."""
SCOPES: dict[str, Scope] = {
    "all verbs": Scope(VERBS, ("zz-*",)),
    "worker": Scope(("read", "claim"), ("zz-*", "*-zz")),
    "measure": Scope(("measure",), ("zz-*",)),
    "admin": Scope(("send", "admin"), ("zz-*",)),
}
CALLERS = [*SCOPES, "user", "guest", "anonymous"]
TICK = {"message": {"body": "tick"}, "every": 3600, "paused": True}


class Hidden(NamedTuple):
    """A queue that no caller may know, and what belongs to it.

    Attributes:
        name: Name of the queue.
        instance: Instance of the owner's member of the common group that consumes it, or None without a member.
        schedule: Name of a schedule, or blank.
        claims, moves: Whether messages are claimed, and moved to the queue ``hidden``.
        principals: Its principals.
    """

    name: str
    instance: str | None = None
    schedule: str = ""
    claims: bool = False
    moves: bool = False
    principals: str = ""


NAMES = st.text("apz-*_.y", min_size=1, max_size=5).filter(
    lambda name: not name.startswith(("zz-", ".", "_")) and not name.endswith(("-zz", "."))
)
HIDDEN = st.lists(
    st.builds(
        Hidden,
        NAMES,
        st.none() | st.sampled_from(["", "w1", "db-host-7"]),
        st.sampled_from(["", "a", "nightly", "ticks"]),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "app:other", "user:bob"]),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda hidden: hidden.name,
)


class World:
    """An application with users, and callers that know some of its queues.

    Args:
        store: An empty store.
        hidden: What no caller may know.
    """

    def __init__(self, store: Store, hidden: list[Hidden]) -> None:
        tokens = Tokens()
        app = make_app(store, readers=[tokens], private={"queuey"}, clock=lambda: 0.0)
        for name, key in (("queuey", KEY), ("guest", GUEST_KEY), ("other", "other")):
            bridge.run(store.applications.create_application(name))
            bridge.run(store.applications.add_key(name, digest_of(key)))
        for name, scope in SCOPES.items():
            bridge.run(store.applications.add_key("queuey", digest_of(name), scope=scope))
        verbs = frozenset(VERBS) - {"admin", "measure"}
        for user in ("ann", "bob"):
            grants = (Grant("queuey", verbs, f"inbox-{user}"),)
            tokens.known[user] = Identity(frozenset({f"user:{user}"}), grants, f"user:{user}")
        self.owner = Caller(app, f"Application {KEY}")
        self.callers = {name: Caller(app, f"Application {name}") for name in SCOPES}
        self.callers |= {
            "user": Caller(app, "Token ann"),
            "guest": Caller(app, f"Application {GUEST_KEY}"),
            "anonymous": Caller(app),
        }
        queues: dict[str, dict[str, Any]] = {
            "zz-a": {"partitions": 2},
            "zz-b": {},
            "zz-open": {"type": "public"},
            "zz-shared": {"principals": "app:guest,user:ann"},
            "inbox-ann": {},
        }
        for name, fields in queues.items():
            self.owner.create(name, **fields)
            self.owner.post(name, f"of {name}", X_Partition="1")
        self.join("zz-b", "g", "visible")
        assert self.owner.send_json("PUT", "_schedules/often", {"queue": "zz-a", **TICK}).status == 201
        if hidden:
            self.owner.create("hidden")
            bob = Caller(app, "Token bob")
            assert bob.send_json("PUT", "zz-open/read", {"until": ID}).status == 200
            bridge.run(store.applications.add_key("queuey", digest_of("secret"), scope=Scope(("read",), ("zz-a",))))
        for each in hidden:
            self._add(each)

    def _add(self, hidden: Hidden) -> None:
        owner, path = self.owner, quote(hidden.name, safe="")
        owner.create(hidden.name)
        owner.post(path, "secret", X_Partition="1")
        owner.send_json("PUT", f"{path}/offsets/secret", {"partitions": {"1": {"offset": ID}}})
        if hidden.instance is not None:
            self.join(hidden.name, "g", hidden.instance)
        if hidden.schedule:
            owner.send_json("PUT", f"_schedules/{hidden.schedule}", {"queue": hidden.name, **TICK})
        if hidden.claims:
            owner.claim(path)
        if hidden.moves:
            owner.send_json("POST", "_moves", {"from": hidden.name, "to": "hidden"})
        if hidden.principals:
            assert owner.send_form("PUT", path, principals=hidden.principals).status == 200

    def join(self, queue: str, group: str, instance: str) -> None:
        path = f"_groups/{group}/members"
        joined = self.owner.send_json("POST", path, {"queues": [queue], "instance": instance, "session": 300})
        assert self.owner.send_json("POST", f"{path}/{joined.json['member']}", {"wait": 2}).status == 200


def requests(hidden: list[Hidden]) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yields requests: method, path, JSON body or None, and query. Those that remove things come last.

    A quick run has in paths one queue that callers may know, and the hidden ones.
    """
    names = ["zz-a", "zz-shared", "inbox-ann", "zz-none", "nothing", *(each.name for each in hidden)]
    paths = names if EXAMPLES > 1 else [names[0], *names[5:]]
    operations = sorted(OPERATIONS, key=lambda operation: operation.method == "DELETE")
    for operation in operations:
        route = f"{operation.method} {operation.path}"
        # A schedule's name belongs to one queue, so a PUT of a hidden schedule's name is refused.
        schedules_named = ["mine", *(each.schedule for each in hidden if each.schedule and operation.method != "PUT")]
        for name in (
            paths if "{queue}" in operation.path else schedules_named if "{schedule}" in operation.path else "-"
        ):
            parts = {"app": "queuey", "queue": name, "ids": ID, "id": ID, "name": "n", "move": "0" * 16, "member": "m"}
            parts |= {"group": "g", "schedule": name}
            path = operation.path.format(**{key: quote(value, safe="") for key, value in parts.items()})
            for body in make_bodies(route, names):
                yield operation.method, path, body, QUERIES.get(route, {})
            if route in {"GET /v1/{app}", "GET /v1/{app}/_groups", "GET /v1/{app}/{queue}/jobs"}:
                yield operation.method, path, None, {"limit": 1}


def make_bodies(route: str, names: list[str]) -> Iterator[Any]:
    method, path = route.split(" ")
    end = path.rpartition("/")[2]
    if end in {"_stream", "_unread", "_claims", "_rights"} and method == "POST":
        yield {"queues": names}
        if end != "_claims":
            yield from ({"queues": [name]} for name in names)
        if end in {"_stream", "_unread"}:
            yield {}
    elif end == "_read":
        yield {"queues": [{"queue_name": name, "delay": 0} for name in names]}
    elif end == "_moves" and method == "POST":
        yield from (
            {"from": source, "to": target} for source in names[:1] + names[3:] for target in ("zz-b", names[-1])
        )
    elif end == "members":
        yield from ({"queues": [name], "session": 300} for name in names)
        yield from ({"patterns": [pattern]} for pattern in ("*", "p*", "zz-*", "z*", names[-1][:1] + "*"))
        yield {"patterns": ["zz-*", names[-1][:1] + "*"]}
    elif end == "{schedule}" and method == "PUT":
        yield from ({"queue": name, **TICK} for name in names)
    elif path == "/v1/{app}" and method == "POST":
        yield from ({"queue_name": name} for name in names)
    else:
        yield BODIES.get(route, {} if method in {"POST", "PUT"} else None)


UNLIKE_HEADERS = {"date", "content-length"}
UNLIKE_TEXT = re.compile(r"\d+\.\d+|\d+ m?s\b|\d{4}-\d\d-\d\dT[\d:.]+|retry: \d+|[0-9a-f]{6,}(?:-[0-9a-f]{4,})*|^#\d+$")
"""Times and ids in a text, and the name of a member without one: its number."""
NUMBERED = {"number", "owner", "target", "epoch"}
"""Fields that count members or are times."""
PROGRESS = {"state", "ended", "moved"}
"""Fields of a move that change while it runs."""


def blur(value: Any, key: str = "") -> Any:  # noqa: ANN401 - of an answer
    """Returns a part of an answer without times, ids and the numbers of members."""
    if isinstance(value, dict):
        is_move = {"from", "to"} <= value.keys()
        return {name: "…" if is_move and name in PROGRESS else blur(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [blur(item) for item in value]
    if isinstance(value, str):
        return UNLIKE_TEXT.sub("…", re.sub(r"^\d+-", "", value) if key == "member" else value)
    if isinstance(value, float) or key in NUMBERED:
        return value and "…"
    return value


def describe(reply: Reply) -> tuple[Any, ...]:
    """Returns status, headers and body without times, ids and numbers of members.

    Of a stream only the status and headers: how many events the caller gets before it leaves depends on the machine.
    """
    headers = [(name, UNLIKE_TEXT.sub("…", value)) for name, value in reply.all_headers]
    shown = [(name, value) for name, value in headers if name.lower() not in UNLIKE_HEADERS]
    assert "secret" not in reply.text
    is_stream = reply.headers.get("Content-Type", "").startswith("text/event-stream")
    return reply.status, shown, None if is_stream else blur(reply.json if reply.is_json else reply.text)


@pytest.fixture
def stores(tmp_path: Path) -> SqliteLocation:
    return prepare_sqlite(tmp_path / "first")


@pytest.mark.parametrize("caller", CALLERS)
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(hidden=HIDDEN)
@example(hidden=[Hidden("payroll", "db-host-7", "nightly", claims=True, moves=True), Hidden("p", "", "a")])
def test_what_is_hidden_changes_nothing(stores: SqliteLocation, caller: str, hidden: list[Hidden]) -> None:
    """Status, headers and body are equal whether there are hidden things or not, but for ids and times."""
    opened = [stores.make_fresh().open() for _ in range(2)]
    try:
        worlds = [World(store, some) for store, some in zip(opened, ([], hidden), strict=True)]
        unlike = []
        for request in requests(hidden):
            with replace_in(schedules, schedules.MAX_LISTED, 2):
                without, beside = (describe(send(world.callers[caller], *request)) for world in worlds)
            if without != beside:
                unlike.append((request, without, beside))
        assert unlike == []
        alone, shared = (consume(world.owner, world.callers[caller]) for world in worlds)
        assert alone == shared
    finally:
        for store in opened:
            store.close()


def consume(owner: Caller, caller: Caller) -> list[tuple[Any, ...]]:
    """Joins the common group for a queue made anew, until it has its partitions; returns the last answers."""
    owner.create("zz-last", partitions=2)
    path = "/v1/queuey/_groups/g"
    replies = [caller.send_json("POST", f"{path}/members", {"queues": ["zz-last"]})]
    if replies[0].status == 201:
        member = f"{path}/members/{replies[0].json['member']}"
        owned: dict[str, Any] = {}
        while len(owned.get("zz-last", {})) < 2:  # bounded: by the time of a test
            beat = caller.send_json("POST", member, {"wait": 3, "owned": owned})
            for queue, taken in beat.json["take"].items():
                owned.setdefault(queue, {}).update({number: each["epoch"] for number, each in taken.items()})
        named = {"owned": {**owned, "payroll": {"1": 1}}, "given_back": {"p": {"1": 1}}}
        replies.append(caller.send_json("POST", member, named))
    return [describe(reply) for reply in [*replies, caller.get(path), caller("DELETE", f"{path}/members/1")]]


def send(caller: Caller, method: str, path: str, body: Any, query: dict[str, Any]) -> Reply:  # noqa: ANN401 - JSON
    text = "" if body is None else json.dumps(body)
    headers = None if body is None else {"Content-Type": "application/json"}
    return caller(method, path, text, headers=headers, **query)
