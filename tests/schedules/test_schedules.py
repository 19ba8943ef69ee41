"""Schedules over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from queuey.schedules import schedules
from queuey.storage import Store
from tests.replacing import replace_in
from tests.web.caller import Caller, limited_caller

PLAN: dict[str, Any] = {"queue": "q", "cron": "0 9 * * MON-FRI", "message": {"body": "wake up"}}


@pytest.fixture
def owner(owner: Caller) -> Caller:
    owner.create("q", partitions=4)
    return owner


def put(caller: Caller, name: str = "s", **fields: object) -> dict[str, Any]:
    """Creates or changes a schedule with the given fields only; returns the answer."""
    reply = caller.send_json("PUT", f"_schedules/{name}", fields)
    assert reply.status in {200, 201}, reply
    schedule: dict[str, Any] = reply.json
    return schedule


def read_put_errors(caller: Caller, name: str = "s", **fields: object) -> dict[str, str]:
    reply = caller.send_json("PUT", f"_schedules/{name}", fields)
    assert reply.status == 400, reply
    errors: dict[str, str] = reply.json["error_msg"]
    return errors


def test_made_shown_changed_and_removed(owner: Caller) -> None:
    """A schedule is created, shown and listed, changed in the given fields, and removed."""
    reply = owner.send_json("PUT", "_schedules/s", {**PLAN, "timezone": "Europe/Berlin"})
    assert reply.status == 201
    made = reply.json
    assert made["message"] == {"body": "wake up"}
    assert (made["cron"], made["timezone"], made["every"]) == ("0 9 * * MON-FRI", "Europe/Berlin", None)
    assert (made["queue"], made["missed"], made["paused"], made["firing"], made["last"]) == (
        "q",
        "skip",
        False,
        None,
        None,
    )
    assert len(made["next"]) == 5
    assert made["next"] == sorted(made["next"])
    assert made["next"][0] > time.time()
    assert owner.get("_schedules/s").json == made
    listed = {key: made[key] for key in made if key not in {"status", "message"}}
    assert owner.get("_schedules").json == {"status": "ok", "schedules": [listed], "more": None}
    reply = owner.send_json("PUT", "_schedules/s", {"paused": True})
    assert reply.status == 200
    assert {key for key in made if made[key] != reply.json[key]} == {"paused", "next", "changed"}
    assert reply.json["next"] == []
    assert put(owner, paused=False)["next"] == made["next"]
    changed = put(owner, timezone="UTC", missed="catch_up")
    assert (changed["cron"], changed["timezone"], changed["missed"]) == (made["cron"], "UTC", "catch_up")
    assert changed["next"] != made["next"]
    assert put(owner, every=3600)["cron"] is None
    assert owner("DELETE", "_schedules/s").status == 200
    for method in ("GET", "DELETE"):
        assert owner(method, "_schedules/s").status == 404
    assert owner("POST", "_schedules/s/run").status == 404
    assert owner.get("_schedules").json["schedules"] == []


def test_what_is_wrong(owner: Caller) -> None:
    """Each bad field is named; nothing is made."""
    plain: dict[str, Any] = {"queue": "q", "message": {"body": "x"}}
    message = {"body": "", "partition": 5, "ttl": 0, "delay": 3}
    mistakes: list[tuple[dict[str, Any], set[str]]] = [
        ({}, {"queue"}),
        ({"queue": "q"}, {"cron", "message"}),
        ({"queue": "q", "every": 60}, {"message"}),
        (PLAN | {"every": 60}, {"cron", "every"}),
        (PLAN | {"cron": "0 0 30 2 *"}, {"cron"}),
        (PLAN | {"timezone": "Nowhere", "missed": "x", "corn": 1}, {"corn"}),
        (PLAN | {"timezone": "Nowhere", "missed": "x"}, {"timezone", "missed"}),
        (plain | {"every": 9}, {"every"}),
        (plain | {"every": 60, "timezone": "UTC"}, {"timezone"}),
        (PLAN | {"message": "x"}, {"message"}),
        (PLAN | {"message": message}, {"message.body", "message.partition", "message.ttl"}),
        (PLAN | {"message": {"body": "x", "delay": 3}}, {"message.delay"}),
        (PLAN | {"message": {"body": "x" * 20_000}}, {"message.body"}),
    ]
    for fields, named in mistakes:
        assert read_put_errors(owner, **fields).keys() == named
    for name in ("a b", "a" * 101):
        assert read_put_errors(owner, name, **PLAN).keys() == {"schedule"}
    assert owner.send_json("PUT", "_schedules/s", {**PLAN, "message": {"body": "x" * 500_000}}).status == 413
    assert owner.send_json("PUT", "_schedules/s", {**PLAN, "queue": "gone"}).status == 404
    assert owner.send_json("PUT", "_schedules/s", ["x"]).status == 400
    assert owner.get("_schedules").json["schedules"] == []


def test_pages(owner: Caller) -> None:
    """A list goes on at the name that it says."""
    for name in "dcba":
        put(owner, name, **PLAN)
    with replace_in(schedules, schedules.MAX_LISTED, 2):
        first = owner.get("_schedules").json
        second = owner.get("_schedules", start=first["more"]).json
    names: Callable[[dict[str, Any]], list[str]] = lambda page: [each["schedule"] for each in page["schedules"]]  # noqa: E731
    assert (names(first), names(second), second["more"]) == (["a", "b"], ["c", "d"], None)


def test_messages_that_the_queue_does_not_take(owner: Caller) -> None:
    """What each tick would be refused for is refused when the schedule is made or changed, also by another queue."""
    owner.create("ordered", partitions=2, kind="ordered")
    owner.create("dedup", partitions=2, kind="dedup")
    owner.create("limited", partitions=2, max_claimed_per_key=1)
    keyed, placed = ({"body": "a", "message_key": "k"}, {"body": "a", "partition": 3})
    assert read_put_errors(owner, **{**PLAN, "queue": "ordered"}).keys() == {"message.message_key"}
    assert read_put_errors(owner, **{**PLAN, "queue": "dedup", "message": keyed}).keys() == {"message.message_key"}
    put(owner, **PLAN)
    assert read_put_errors(owner, queue="ordered").keys() == {"message.message_key"}
    put(owner, queue="ordered", message=keyed)
    put(owner, queue="limited")
    put(owner, queue="dedup", message={"body": "a"})
    put(owner, queue="q", message=placed)
    for queue in ("ordered", "dedup", "limited"):
        assert read_put_errors(owner, queue=queue).keys() <= {"message.partition", "message.message_key"}


def test_a_schedule_of_a_queue_that_is_gone(owner: Caller) -> None:
    """A schedule of a deleted queue can be shown, paused and removed; its tick reports the error."""
    put(owner, **PLAN)
    owner("DELETE", "q")
    assert owner("POST", "_schedules/s/run").json["last"]["state"] == "failed"
    assert put(owner, paused=True)["paused"]
    assert owner.send_json("PUT", "_schedules/s", {"paused": False}).status == 404
    assert owner("DELETE", "_schedules/s").status == 200


def test_who_may(store: Store, owner: Caller) -> None:
    """To make and run a schedule takes admin and send for its queue; to see, pause and remove it, admin."""
    owner.create("other")
    manager, admin = limited_caller(owner, store, "admin,send", "q"), limited_caller(owner, store, "admin", "q")
    sender = limited_caller(owner, store, "send", "q")
    stranger = limited_caller(owner, store, "admin,send", "other")
    for caller in (admin, sender, stranger):
        assert caller.send_json("PUT", "_schedules/s", PLAN).status == 403
    put(manager, **PLAN)
    assert sender.get("_schedules").status == sender.get("_schedules/s").status == 403
    assert sender("POST", "_schedules/s/run").status == admin("POST", "_schedules/s/run").status == 403
    assert sender("DELETE", "_schedules/s").status == 403
    for method, path in (("GET", "s"), ("DELETE", "s"), ("POST", "s/run")):
        assert stranger(method, f"_schedules/{path}").status == 404
    assert stranger.get("_schedules").json["schedules"] == []
    # The name is taken, for every caller.
    assert stranger.send_json("PUT", "_schedules/s", {**PLAN, "queue": "other"}).status == 403
    # A caller without the right to send can neither change its queue nor its message.
    assert manager.send_json("PUT", "_schedules/s", {"queue": "other"}).status == 403
    assert admin.send_json("PUT", "_schedules/s", {"message": {"body": "x"}}).status == 403
    assert admin.send_json("PUT", "_schedules/s", {"every": 10}).status == 403
    assert [each["schedule"] for each in admin.get("_schedules").json["schedules"]] == ["s"]
    assert put(admin, paused=True)["paused"]
    assert admin.send_json("PUT", "_schedules/s", {"paused": False}).status == 403
    assert not put(manager, paused=False)["paused"]
    assert admin("DELETE", "_schedules/s").status == 200
