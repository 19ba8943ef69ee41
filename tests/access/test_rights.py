"""Callers ask for their rights: the answer agrees with the requests themselves and does not reveal queues."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.facades.settings import Facades, SqsFacade
from queuey.model.messages import Scope
from queuey.model.rights import VERBS, Verb, parse_scope
from queuey.storage import Store, bridge
from tests.access.test_access_table import ALIKE, COLUMNS, EXAMPLES, KINDS, ROWS, Names, Scene, is_allowed
from tests.access.test_access_table import names as drawn_names
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.tenants import KEY
from tests.web.caller import Caller, Tokens

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


def test_bad_questions(owner: Caller) -> None:
    """A body that is not a list of at most the allowed names is refused with the field's name."""
    for queues in (None, "orders", [1], ["x" * 256], ["x"] * 101, [["x"]], {"x": 1}):
        assert list(owner.send_json("POST", "_rights", {"queues": queues}).errors) == ["queues"], queues
    assert owner.send_json("POST", "_rights", {"queues": ["x" * 255] * 100}).status == 200


def test_strangers(app: App, store: Store) -> None:
    """An unknown application is 404, a bad key 401; several credentials add up."""
    for secret, verbs in (("one", ("send",)), ("two", ("measure",))):
        bridge.run(store.applications.add_key("queuey", digest_of(secret), scope=parse_scope(verbs, ("orders-*",))))
    both = Caller(app, "Application one; Application two")
    assert rights(both, "queuey", "orders-1", "mails") == [{"send", "measure"}, set()]
    assert both.send_json("POST", "/v1/nothing/_rights", {"queues": []}).status == 404
    assert Caller(app, "Application three").send_json("POST", "_rights", {"queues": []}).status == 401


# Rights to begin, see and cancel a move, by the API and by SQS, with a key for one verb on one of the two queues


ARN = "arn:aws:sqs:eu-west-1:000000000000:"


class Move(NamedTuple):
    """A finished move, and the application that serves it."""

    app: App
    store: Store
    id: str
    handle: str

    def caller(self, verbs: tuple[Verb, ...], queue: str) -> Caller:
        bridge.run(self.store.applications.add_key("queuey", digest_of("limited"), scope=Scope(verbs, (queue,))))
        return Caller(self.app, "Application limited")

    def sqs(self, verbs: tuple[Verb, ...], queue: str) -> Sqs:
        return Sqs(self.app, new_key(self.store, "queuey", ",".join(verbs), queue), "/sqs")


@pytest.fixture
def move(store: Store) -> Move:
    """A finished move without messages from ``source`` to ``target``."""
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    app = facade_app(store, Facades(sqs=SqsFacade(prefix="/sqs")), secret=DEPLOYMENT)
    owner, sqs = Caller(app, f"Application {KEY}"), Sqs(app, new_key(store, "queuey"), "/sqs")
    for name in ("source", "target"):
        owner.create(name)
    handle = sqs("StartMessageMoveTask", SourceArn=f"{ARN}source", DestinationArn=f"{ARN}target")["TaskHandle"]
    [moved] = owner.get("_moves").json["moves"]
    return Move(app, store, moved["move"], handle)


@pytest.mark.parametrize("queue", ["source", "target"])
@pytest.mark.parametrize("verb", VERBS)
def test_one_verb_for_one_queue(move: Move, verb: Verb, queue: str) -> None:
    """A key needs delete on the source to cancel a move, and measure on either queue to see it; one begins none."""
    caller, sqs = move.caller((verb,), queue), move.sqs((verb,), queue)
    cancels = verb == "delete" and queue == "source"
    seen, cancelled = (caller(method, f"_moves/{quote(move.id)}").status == 200 for method in ("GET", "DELETE"))
    listed = caller.get("_moves")
    assert cancelled is cancels
    assert (
        seen is (listed.status == 200 and len(listed.json["moves"]) == 1) is (caller.get(queue + "/info").status == 200)
    )
    assert caller.send_json("POST", "_moves", {"from": "source", "to": "target"}).status == 403
    assert (sqs.ask("CancelMessageMoveTask", TaskHandle=move.handle).status == 200) is cancels
    assert (sqs.ask("ListMessageMoveTasks", SourceArn=f"{ARN}source").status == 200) is (seen and queue == "source")
    reply = sqs.ask("StartMessageMoveTask", SourceArn=f"{ARN}source", DestinationArn=f"{ARN}target")
    assert reply.status == 403
