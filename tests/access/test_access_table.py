"""The table of docs/access.md: every request by every kind of caller is answered as the page says."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuey.access.credentials.readers import Identity, digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.app.version_1 import OPERATIONS
from queuey.model.errors import QueueNotFound
from queuey.model.messages import OPERATORS, NewMessage, OffsetChange, Queue, QueueSpec, Scope
from queuey.model.rights import VERBS, Grant, Verb, matches, parse_principals
from queuey.storage import Store, bridge
from tests.web.caller import Caller, Reply, Tokens
from tests.web.gateway_calls import operations_of

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
ID = "0123456789ab11e88000000000000001"
SECRET = "only for those who may read"
KINDS = {"n": ("user", False), "p": ("public", False), "s": ("user", True), "ps": ("public", True)}
"""Type of each kind of queue, and whether the queue has principals."""
READING = {
    "GET /v1/{app}/{queue}",
    "POST /v1/{app}/_read",
    "GET /v1/{app}/_stream",
    "POST /v1/{app}/_stream",
    "GET /v1/{app}/{queue}/{ids}",
    "POST /v1/{app}/{queue}/claims",
    "POST /v1/{app}/_claims",
    "GET /v1/{app}/{queue}/peek",
}
READ_MARK_ROUTES = {"PUT /v1/{app}/{queue}/read", "POST /v1/{app}/_unread"}
BODIES: dict[str, dict[str, Any]] = {
    "PUT /v1/{app}/{queue}/read": {"until": ID},
    "PUT /v1/{app}/{queue}/offsets/{group}": {"partitions": {"1": {"offset": ID}}},
    "POST /v1/{app}/_rights": {"queues": ["x"]},
    "POST /v1/{app}/{queue}/lag": {"partitions": {"1": None}},
    **{f"POST /v1/{{app}}/{{queue}}/claims/{what}": {"receipts": []} for what in ("ack", "renew", "release")},
    "POST /v1/{app}/{queue}/claims/state": {"states": {}},
    "POST /v1/{app}/_groups/{group}/members/{member}": {},
    "POST /v1/{app}/{queue}/redrive": {"ids": [ID]},
}
QUERIES = {"GET /v1/{app}/{queue}": {"delay": 0}, "POST /v1/{app}/{queue}/claims": {"ttl": 0}}
"""Queries that make requests answer at once and change nothing for the next caller."""

Row = dict[str, str]


def rows(first: str = "request") -> list[Row]:
    """Returns the rows of the tables whose first column has this name, as values by column.

    Further tables add columns to the same rows: "-" where they leave a row out.
    """
    found: list[Row] = []
    for text in PAGE.read_text().split(f"\n| {first} | ")[1:]:
        lines = [line.strip("| \n").split(" | ") for line in text.splitlines()]
        header = [first, *lines[0]]
        table = lines[2 : lines.index([""])] if [""] in lines else lines[2:]
        assert {len(line) for line in table} == {len(header)}
        more = [dict(zip(header, (cell.strip("`") for cell in line), strict=True)) for line in table]
        added = {one[first]: one for one in more}
        found = [dict.fromkeys(header, "-") | one | added.pop(one[first], {}) for one in found] or more
        assert found is more or not added
    return found


ROWS = [
    {**row, "route": route.strip("`†"), "compat": "yes" if route.endswith("†") else "-"}
    for row in rows()
    for route in row["routes"].split(", ")
]
COLUMNS = [column for column in ROWS[0] if column not in {"request", "routes", "route", "compat"}]
EXAMPLES = max(1, settings().max_examples // 20 - 2)
"""Names drawn for each kind of queue."""


class Names(NamedTuple):
    """Names of two applications, two users and two queues, all different."""

    owner: str
    other: str
    user: str
    another: str
    queue: str
    elsewhere: str


ALIKE = Names("a", "ab", "ann", "Ann", "ab", "a*")

NUMBERS = itertools.count()
LETTERS = st.text("aAb-_é1", min_size=1, max_size=4)
QUEUES = st.text("aAb*,.=é ?%-", min_size=1, max_size=6).filter(lambda name: name.strip(" .") == name)


@st.composite
def names(draw: st.DrawFn) -> Names:
    """Draws similar names, such as a name and its prefix."""
    applications = draw(st.lists(LETTERS, min_size=2, max_size=2, unique=True))
    users = draw(st.lists(LETTERS, min_size=2, max_size=2, unique=True))
    queues = draw(st.lists(QUEUES, min_size=2, max_size=2, unique=True))
    return Names(*applications, *users, *queues)


class Scene:
    """An application with a queue, and one caller of each kind.

    Args:
        app: Serves the store and knows the tokens.
        store: Has the queue and the keys.
        tokens: Has the users.
        drawn: Names, which a suffix makes unique.
        kind: Kind of the queue.
    """

    def __init__(self, app: App, store: Store, tokens: Tokens, drawn: Names, kind: str) -> None:
        number = next(NUMBERS)
        self.names = drawn._replace(owner=f"{drawn.owner}{number}", other=f"{drawn.other}{number}")
        self.elsewhere = "-nothing-" if matches(drawn.elsewhere, drawn.queue) else drawn.elsewhere
        self._app, self._store, self._tokens = app, store, tokens
        self._type, shared = KINDS[kind]
        other = self.names.other
        for name in (self.names.owner, *(other + suffix for suffix in ("", ".p", ".r", ".d"))):
            bridge.run(store.applications.create_application(name))
        self._mail = f"user{number}@example.org"
        listed = f"app:{other}.p,app:{other}.r=read,app:{other}.d=delete,bid:{self._mail}" if shared else ""
        self._principals = parse_principals(listed.split(","))
        bridge.run(store.catalogue.create_queue(self.names.owner, drawn.elsewhere, QueueSpec()))
        self._group = ""
        self.callers = dict(zip(COLUMNS, map(self._caller, COLUMNS), strict=True))

    def _caller(self, column: str) -> Caller:
        return Caller(self._app, None if column == "anonymous" else self._make_credential(column), "")

    def _make_credential(self, column: str) -> str:
        owner, other, queue = self.names.owner, self.names.other, self.names.queue
        verbs = tuple(verb for verb in VERBS if verb in column.split(", "))
        if verbs:
            # A pattern with the prefix of the name, as limited keys have it, which matches only this queue.
            return self._add_key(owner, scope=Scope(verbs, ("-nothing-*", queue)))
        kinds: dict[str, Callable[[], str]] = {
            "owner": lambda: self._add_key(owner),
            "expired": lambda: self._add_key(owner, expires=time.time() - 1),
            "other queues": lambda: self._add_key(owner, scope=Scope(VERBS, (self.elsewhere,))),
            "other application": lambda: self._add_key(other),
            "app:": lambda: self._add_key(other + ".p"),
            "app:…=read": lambda: self._add_key(other + ".r"),
            "app:…=delete": lambda: self._add_key(other + ".d"),
            "operator": lambda: self._add_key(OPERATORS),
            "bid:": lambda: self._add_token(f"bid:{self._mail}"),
            "pattern user": lambda: self._add_token(f"user:{self.names.user}", queue),
            "another user": lambda: self._add_token(f"user:{self.names.another}", self.names.elsewhere),
        }
        return kinds[column.strip("`")]()

    def _add_key(self, application: str, *, expires: float | None = None, scope: Scope | None = None) -> str:
        secret = f"key{next(NUMBERS)}"
        bridge.run(self._store.applications.add_key(application, digest_of(secret), expires=expires, scope=scope))
        return f"Application {secret}"

    def _add_token(self, name: str, queue: str | None = None) -> str:
        token = f"token{next(NUMBERS)}"
        verbs: frozenset[Verb] = frozenset({"read", "delete"})
        grants = () if queue is None else (Grant(self.names.owner, verbs, queue),)
        self._tokens.known[token] = Identity(frozenset({name}), grants, name)
        return f"Token {token}"

    def ensure_queue(self) -> Queue:
        """Returns the queue. Creates it if it is missing, with a message, an offset of a group, and a consumer."""
        with suppress(QueueNotFound):
            return bridge.run(self._store.catalogue.queue(self.names.owner, self.names.queue, fresh=True))
        spec = QueueSpec(type=self._type, principals=self._principals)
        queue, _ = bridge.run(self._store.catalogue.create_queue(self.names.owner, self.names.queue, spec))
        position = bridge.run(self._store.messages.append(queue, [NewMessage(SECRET, 1, 3600)]))[0]
        bridge.run(self._store.offsets.set_offsets(queue, "g", [OffsetChange(1, position)]))
        self._join_as_owner(self.names.elsewhere if self._principals else queue.name)
        return queue

    def _join_as_owner(self, queue: str) -> None:
        self._group = f"group{next(NUMBERS)}"
        consumer = self.callers["owner"]
        path = f"/v1/{quote(self.names.owner, safe='')}/_groups/{self._group}/members"
        joined = consumer.send_json("POST", path, {"queues": [queue]}).json["member"]
        assert consumer.send_json("POST", f"{path}/{joined}", {"wait": 1}).json["take"].keys() == {queue}

    def request(self, route: str, caller: Caller) -> Reply:
        method, path = route.split(" ")
        group = self._group if "_groups" in route else "g"
        parts = {
            "app": self.names.owner,
            "queue": self.names.queue,
            "group": group,
            "ids": ID,
            "name": "n",
            "member": "m",
        }
        parts |= {"move": "0" * 16, "id": ID, "schedule": "s"}
        path = path.format(**{name: quote(part, safe="") for name, part in parts.items()})
        if route.endswith("/_read"):
            return caller.send_json(method, path, {"queues": [{"queue_name": self.names.queue, "delay": 0}]})
        if route == "POST /v1/{app}/_moves":
            # A move of a queue to itself is refused only after authorization.
            return caller.send_json(method, path, {"from": self.names.queue, "to": self.names.queue})
        named = {
            f"POST /v1/{{app}}/{name}": {"queues": [self.names.queue]}
            for name in ("_stream", "_claims", "_unread", "_groups/{group}/members")
        }
        plan = {"queue": self.names.queue, "message": {"body": "tick"}, "every": 3600, "paused": True}
        bodies: dict[str, Any] = {**BODIES, **named, "PUT /v1/{app}/_schedules/{schedule}": plan}
        queries: dict[str, dict[str, Any]] = {
            **QUERIES,
            "GET /v1/{app}/_stream": {"queues": quote(self.names.queue, safe="")},
        }
        if route in bodies:
            end = "?ttl=0" if route.endswith("/_claims") else ""
            return caller.send_json(method, path + end, bodies[route])
        if route == "POST /v1/{app}":
            return caller.send_form(method, path, queue_name=self.names.queue)
        if route in queries:
            return caller(method, path, b"", headers=None, **queries[route])
        return caller(method, path, "x" if method in {"POST", "PUT"} and "{queue}" in route else "")


def is_allowed(row: Row, column: str, kind: str) -> bool:
    """Returns whether a cell allows a kind of queue.

    ``ps`` counts as ``p`` where anybody may do it or marks are read, otherwise as ``s``.
    """
    if kind == "ps":
        kind = "p" if "p" in row["anonymous"].split() or row["route"] in READ_MARK_ROUTES else "s"
    cell = row[column].split()
    return cell == ["yes"] or kind in cell


def check(scene: Scene, row: Row, column: str, kind: str) -> None:
    """Makes a request of the row as the caller of the column; fails unless the answer is what the table says."""
    route = row["route"]
    scene.ensure_queue()
    reply = scene.request(route, scene.callers[column])
    place = f"{route} as {column}, queue of kind {kind}: {reply}"
    allowed = is_allowed(row, column, kind)
    for_anybody = column != "expired" and (column not in {"anonymous", "operator"} or route.endswith("/_read"))
    if route.endswith(("/_read", "/_unread")) and for_anybody:
        assert reply.status == 200, place
        assert (reply.json["queues"][0]["status"] == "ok") == allowed, place
    elif allowed:
        missing = reply.status == 404 and any(
            part in route for part in ("{group}", "{name}", "{move}", "{schedule}", "/jobs/{id}")
        )
        itself = reply.status == 400 and route == "POST /v1/{app}/_moves"
        active = reply.status == 409 and route == "DELETE /v1/{app}/_groups/{group}"
        assert reply.status in {200, 201} or missing or itself or active, place
    else:
        without = 403 if row["compat"] == "yes" else 401
        assert reply.status == {"expired": 401, "anonymous": without}.get(column, 403), place
    assert (SECRET in reply.text) == (allowed and route in READING and "{ids}" not in route), place
    if route == "GET /v1/{app}" and allowed:
        pattern = {"owner": "*", "operator": "*", "other queues": scene.elsewhere}.get(column, scene.names.queue)
        expected = [name for name in sorted([scene.names.queue, scene.names.elsewhere]) if matches(pattern, name)]
        assert [queue["queue_name"] for queue in reply.json["queues"]] == expected, place


def test_the_table_has_every_route(app: App) -> None:
    """The table has each operation of the API and each resource for monitors once."""
    operations = [f"{operation.method} {operation.path}" for operation in OPERATIONS]
    monitors = {f"GET {path}" for path in operations_of(app)}
    assert sorted(row["route"] for row in ROWS) == sorted([*operations, *monitors])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES)
@given(drawn=names())
@example(drawn=ALIKE)
def test_every_request_by_every_caller(store: Store, tokens: Tokens, kind: str, drawn: Names) -> None:
    """Every caller is let in exactly where the page says so, whatever the names are."""
    scene = Scene(make_app(store, readers=[tokens]), store, tokens, drawn, kind)
    for column in COLUMNS:
        bridge.run(store.catalogue.delete_queue(scene.ensure_queue()))
        for row in ROWS:
            if EXAMPLES > 1 or kind in kinds_played(row, column):
                check(scene, row, column, kind)


def kinds_played(row: Row, column: str) -> set[str]:
    """Returns the kinds of queues with which a quick run plays a cell.

    A cell that names kinds is played with each of them in the first row of all that are alike. Every other cell is
    played with the kind for which its caller decides: principals count only where a queue has some.
    """
    is_first = not any(is_alike(row, earlier) for earlier in ROWS[: ROWS.index(row)])
    if is_first and KINDS.keys() & {*row[column].split(), *row["anonymous"].split()}:
        return set(KINDS)
    return {"s" if column.startswith(("`app:", "`bid:")) else "p" if column == "anonymous" else "n"}


def is_alike(row: Row, other: Row) -> bool:
    return row["request"] == other["request"]
