"""Callers ask for their rights: the answer agrees with the requests themselves and does not reveal queues."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings

from queuey.access import parse_scope
from queuey.messages import QueueSpec
from queuey.storage import Store, bridge
from queuey.web import make_app
from queuey.web.credentials import digest_of
from queuey.web.parts import App
from tests.web.access.test_access_table import ALIKE, COLUMNS, EXAMPLES, KINDS, ROWS, Names, Scene, Tokens, is_allowed
from tests.web.access.test_access_table import names as drawn_names
from tests.web.caller import Caller

ROUTES = {
    "send": "POST /v1/{app}/{queue}",
    "overwrite": "PUT /v1/{app}/{queue}/{ids}",
    "read": "GET /v1/{app}/{queue}",
    "delete": "DELETE /v1/{app}/{queue}/{ids}",
    "work": "POST /v1/{app}/{queue}/claims",
    "claim": "PUT /v1/{app}/{queue}/offsets/{group}",
    "admin": "PUT /v1/{app}/{queue}",
    "measure": "GET /v1/{app}/{queue}/info",
}
"""A request for each action that needs it."""


def rights(caller: Caller, application: str, *queues: str) -> list[set[str]]:
    reply = caller.send_json("POST", f"/v1/{application}/_rights", {"queues": list(queues)})
    assert [one["queue_name"] for one in reply.json["queues"]] == list(queues)
    return [set(one["actions"]) for one in reply.json["queues"]]


class Everything:
    """A container of every application."""

    def __contains__(self, _: object) -> bool:
        return True


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES)
@given(drawn=drawn_names())
@example(drawn=ALIKE)
def test_the_answer_is_what_requests_say(store: Store, tokens: Tokens, kind: str, drawn: Names) -> None:
    """Each caller is told exactly the actions whose requests the page's table allows."""
    scene = Scene(make_app(store, readers=[tokens]), store, tokens, drawn, kind)
    scene.ensure_queue()
    rows = {row["route"]: row for row in ROWS}
    for column in COLUMNS:
        if column != "expired":
            expected = {action for action, route in ROUTES.items() if is_allowed(rows[route], column, kind)}
            assert rights(scene.callers[column], scene.names.owner, scene.names.queue) == [expected], column


@pytest.mark.parametrize("private", [True, False])
def test_it_reveals_no_queue(store: Store, tokens: Tokens, *, private: bool) -> None:
    """A caller without rights on a queue gets the same answer if it does not exist; so does one with rights on all."""
    app = make_app(store, readers=[tokens], private=Everything() if private else ())
    scene = Scene(app, store, tokens, ALIKE, "n")
    scene.ensure_queue()
    hidden = bridge.run(store.catalogue.create_queue(scene.names.owner, "hidden", QueueSpec()))[0]
    for column in COLUMNS:
        if column != "expired":
            present, absent = rights(scene.callers[column], scene.names.owner, hidden.name, "absent")
            assert present == absent, column


def test_a_queue_need_not_exist(app: App, store: Store, owner: Caller) -> None:
    """The owner may do everything with a queue to come; nothing is created by asking."""
    assert rights(owner, "queuey", "to-come", "with/slash", "") == [set(ROUTES)] * 3
    assert owner.get().json["queues"] == []


@pytest.mark.parametrize("queues", [None, "orders", [1], ["x" * 256], ["x"] * 101, [["x"]], {"x": 1}])
def test_bad_questions(owner: Caller, queues: object) -> None:
    """A body that is not a list of at most the allowed names is refused with the field's name."""
    assert list(owner.send_json("POST", "_rights", {"queues": queues}).errors) == ["queues"]
    assert owner.send_json("POST", "_rights", {"queues": ["x" * 255] * 100}).status == 200


def test_strangers(app: App, store: Store) -> None:
    """An unknown application is 404, a bad key 401; several credentials add up."""
    for secret, verbs in (("one", ("send",)), ("two", ("measure",))):
        bridge.run(store.applications.add_key("queuey", digest_of(secret), scope=parse_scope(verbs, ("orders-*",))))
    both = Caller(app, "Application one; Application two")
    assert rights(both, "queuey", "orders-1", "mails") == [{"send", "measure"}, set()]
    assert both.send_json("POST", "/v1/nothing/_rights", {"queues": []}).status == 404
    assert Caller(app, "Application three").send_json("POST", "_rights", {"queues": []}).status == 401
