"""Messages that are moved to another queue over HTTP."""

from __future__ import annotations

from typing import Any

from queuey.messages import Record
from queuey.service.moves.records import KIND
from queuey.storage import Records, Store, bridge
from tests.contract.samples import eventually
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller


def wait_for_end(caller: Caller, move: str) -> dict[str, Any]:
    moves: list[dict[str, Any]] = []

    def over() -> bool:
        moves[:] = [caller("GET", f"_moves/{move}").json]
        return moves[0]["ended"] is not None

    assert eventually(over, 60)
    return moves[0]


def test_ended_while_it_is_looked_for(owner: Caller, store: Store, between: InterposedStore) -> None:
    """A move that begins and ends between the two reads of a look-up is found, in the list too."""
    for name in ("from", "to"):
        owner.create(name)
    move = owner.send_json("POST", "_moves", {"from": "from", "to": "to"}).json["move"]
    wait_for_end(owner, move)
    assert eventually(lambda: not bridge.run(store.records.records(KIND, "queuey")), 60)
    for path in (f"_moves/{move}", "_moves"):
        early: list[list[Record]] = [[]]

        def not_begun(kind: str, application: str, *, limit: int, early: list[list[Record]] = early) -> list[Record]:
            if kind == KIND and early:
                return early.pop()
            return bridge.run(store.records.records(kind, application, limit=limit))

        between.instead(Records.records, not_begun)
        reply = owner("GET", path)
        assert (reply.status, early) == (200, [])
        assert [one["state"] for one in reply.json.get("moves", [reply.json])] == ["done"]
        between.restore(Records.records)


def test_what_is_refused(owner: Caller) -> None:
    """Missing and impossible values are refused by name: queues, a queue to itself, an invalid move id."""
    owner.create("q")
    assert owner.send_json("POST", "_moves", {}).json["error_msg"] == {"from": "Required", "to": "Required"}
    assert owner.send_json("POST", "_moves", {"from": "q", "to": 5}).status == 400
    assert owner.send_json("POST", "_moves", {"from": "q", "to": "q"}).json["error_msg"].keys() == {"to"}
    assert owner.send_json("POST", "_moves", {"from": "q", "to": "gone"}).status == 404
    for method in ("GET", "DELETE"):
        reply = owner(method, "_moves/01f1e5fcaf55cfbe")
        assert (reply.status, list(reply.json["error_msg"])) == (404, ["InvalidMoveId"])
    assert owner("PUT", "_moves").status == 405
