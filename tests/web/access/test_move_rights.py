"""Rights to begin, see and cancel a move, by the API and by SQS, with a key for one verb on one of the two queues."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

import pytest

from queuey.access import VERBS
from queuey.api.queues import Verb
from queuey.facades.settings import Facades, SqsFacade
from queuey.messages import Scope
from queuey.storage import Store, bridge
from queuey.web.credentials import digest_of
from queuey.web.parts import App
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.web.caller import Caller
from tests.web.conftest import KEY

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
