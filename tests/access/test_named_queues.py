"""Queues named by an option are written by the caller's own rights, and their own data stays intact."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import qdo.cli
import queuey.cli
from queuey.app.version_1 import OPERATIONS, document
from queuey.model.rights import VERBS
from queuey.storage import Store
from tests.access.test_access_table import Row, rows
from tests.contract.samples import eventually
from tests.docs.test_links import options_of, part_of
from tests.web.caller import Caller, limited_caller

pytestmark = pytest.mark.one_app


@pytest.fixture
def tenant(owner: Caller, store: Store) -> Caller:
    """Returns a caller that may do everything with the queues of its own name."""
    owner.create("payroll")
    owner.post("payroll", "wages")
    return limited_caller(owner, store, "admin,send,read,claim,delete", "orders-*")


def names(owner: Caller) -> list[str]:
    return [queue["queue_name"] for queue in owner.get().json["queues"]]


def fail(caller: Caller, queue: str) -> None:
    """Has all messages of a queue delivered as often as allowed, and claims again."""
    while claims := caller("POST", f"{queue}/claims", b"", headers=None, limit=9).messages:
        caller.send_json("POST", f"{queue}/claims/release", {"receipts": [claim["receipt"] for claim in claims]})


def bodies(caller: Caller, queue: str) -> list[Any]:
    reply = caller.get(queue, partitions="*", delay=0)
    return [] if reply.status == 404 else sorted(reply.bodies)


def holds(caller: Caller, queue: str, partitions: int, *expected: str) -> bool:
    """Waits for as many bodies; returns whether the queue has exactly these, and so many partitions."""
    eventually(lambda: len(bodies(caller, queue)) >= len(expected))
    return bodies(caller, queue) == sorted(expected) and caller.get(f"{queue}/info").json["partitions"] == partitions


@pytest.mark.parametrize("named", ["payroll", "invented", "orders.dead"])
def test_a_limited_key_names_no_queue_of_others(owner: Caller, tenant: Caller, named: str) -> None:
    """A limited key cannot name a queue outside its limits: at creation, later, or after a deletion."""
    create = {"queue_name": "orders-w", "partitions": 200, "max_deliveries": 1, "dead_letter": named}
    before = names(owner)
    refused = tenant.send_form("POST", "", **create)
    assert (refused.status, names(owner)) == (403, before)
    assert "limited to other queues" in refused.text
    assert named not in refused.text
    for kind in ("plain", "dedup"):
        tenant.create("orders-w", kind=kind, max_deliveries=1)
        assert tenant.send_form("PUT", "orders-w", dead_letter=named).status == 403
        assert tenant.send_json("PUT", "orders-w", {"dead_letter": named, "ttl": 60}).status == 403
        assert tenant.get("orders-w/info").json["dead_letter"] == "orders-w.dead"
        tenant("DELETE", "orders-w")
        assert tenant.send_form("POST", "", **create, kind=kind).status == 403
    tenant.create("orders-w.dead")
    assert tenant.send_form("PUT", "orders-w.dead", dead_letter=named).status == 403
    assert holds(owner, "payroll", 1, "wages")


def test_what_was_set_before_stays(owner: Caller, tenant: Caller) -> None:
    """An option set with more rights stays and may be set again; once it is reset it may not."""
    owner.create("orders-w", max_deliveries=1, dead_letter="payroll")
    assert tenant.send_form("PUT", "orders-w", ttl=60, dead_letter="payroll").status == 200
    tenant.post("orders-w", "job")
    fail(tenant, "orders-w")
    assert holds(owner, "payroll", 1, "wages", "job")
    assert tenant.send_json("PUT", "orders-w", {"dead_letter": None}).status == 200
    assert tenant.send_form("PUT", "orders-w", dead_letter="payroll").status == 403
    tenant("DELETE", "orders-w")
    assert tenant.send_form("POST", "", queue_name="orders-w", dead_letter="payroll").status == 403


def test_a_named_queue_that_is_not_there(owner: Caller) -> None:
    """If the named queue is missing, letters go to the source's own dead letters, and it is not created."""
    owner.create("failed")
    owner.create("orders-w", max_deliveries=1, dead_letter="failed")
    owner("DELETE", "failed")
    owner.post("orders-w", "job")
    fail(owner, "orders-w")
    assert holds(owner, "orders-w.dead", 1, "job")
    assert names(owner) == ["orders-w", "orders-w.dead"]
    owner.create("failed")
    owner.post("orders-w", "another")
    fail(owner, "orders-w")
    assert holds(owner, "failed", 1, "another")


# The tables of docs/access.md


ROWS = rows("option")
PROGRAMS = rows("program")
NO_QUEUES = """
acknowledge after back backoff before body claims commits consistency content_type cron cursor delay
description dry_run early encoding epoch error every factor first given_back grace headers ids instance jitter kind
begun leaving limit max_claimed max_claimed_per_key max_deliveries member merge message message_key messages missed
most name on_ack on_expiry order owned partition partitions paused principals principles read_delay read_marks
reason receipts result_ttl results retry revoke session since states text timezone too_large trusted ttl type until
wait worker
"""
"""Fields of requests that do not name another queue."""


def is_let_in(caller: Caller, row: Row, first: str, named: str) -> bool:
    match row["option"], row["of"]:
        case "dead_letter", "POST /v1/{app}":
            reply = caller.send_form("POST", "", queue_name=f"{first}-new", dead_letter=named)
        case "dead_letter", _:
            reply = caller.send_form("PUT", first, dead_letter=named)
        case "queues", "POST /v1/{app}/_stream":
            return caller.send_json("POST", "_stream", {"queues": [named]}).status == 200
        case "queues", "POST /v1/{app}/_claims":
            reply = caller.send_json("POST", "_claims", {"queues": [named]})
        case option, "POST /v1/{app}/_groups/{group}/members":
            reply = caller.send_json("POST", "_groups/g/members", {option: [named]})
        case "queues", "POST /v1/{app}/_unread":
            reply = caller.send_json("POST", "_unread", {"queues": [named]})
            return bool(reply.json["queues"][0]["status"] == "ok")
        case "queues", _:
            reply = caller.send_json("POST", "_read", {"queues": [{"queue_name": named}]})
            return bool(reply.json["queues"][0]["status"] == "ok")
        case "queue", _:
            plan = {"queue": named, "message": {"body": "tick"}, "every": 3600, "paused": True}
            reply = caller.send_json("PUT", f"_schedules/{named}", plan)
        case option, _:
            ends = {"from": first, "to": first, option: named}
            reply = caller.send_json("POST", "_moves", ends)
    assert reply.status in {200, 201, 202, 403}, (row, reply)
    return reply.status != 403


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['option']} of {row['of']}")
def test_the_table_of_options(owner: Caller, store: Store, row: Row) -> None:
    """What an option needs in the queue that it names is what the page says, whatever the first allows."""
    needs = [set(verbs.split(" and ")) for verbs in row["right there"].replace("`", "").split(" or ")]
    for number, allow in enumerate((*VERBS, "send,delete", "read,delete", "read,claim", "send,admin", "")):
        first, named = f"first{number}", f"named{number}"
        owner.create(first)
        owner.create(named)
        keys = [
            limited_caller(owner, store, ",".join(VERBS), f"{first}*"),
            limited_caller(owner, store, allow or ",".join(VERBS), named if allow else "elsewhere"),
        ]
        combined = Caller(owner.app, "; ".join(str(caller.authorization) for caller in keys))
        expected = any(verbs <= set(allow.split(",")) for verbs in needs)
        assert is_let_in(combined, row, first, named) == expected, (row["option"], allow)


def fields(schema: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    schema = known[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    for subschema in [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]:
        yield from fields(subschema, known)
    for name, subschema in schema.get("properties", {}).items():
        yield name
        yield from fields(subschema, known)


def test_the_table_has_every_option_of_the_api() -> None:
    """Each field of each request is in the table of options, names the queue of the request, or names no queue."""
    published: dict[str, Any] = document()
    tabled = set()
    for operation in OPERATIONS:
        body = published["paths"][operation.path][operation.method.lower()].get("requestBody", {})
        for content in body.get("content", {}).values():
            for name in fields(content["schema"], published["components"]["schemas"]):
                tabled.add((name, f"{operation.method} {operation.path}"))
    tabled.remove(("queues", "POST /v1/{app}/_rights"))  # the route uses no rights and answers every caller
    tabled.remove(
        ("last_event_id", "POST /v1/{app}/_stream")
    )  # the answer has offsets of queues that are named elsewhere
    naming = {(name, route) for name, route in tabled if name not in {*NO_QUEUES.split(), "queue_name"}}
    assert naming == {(row["option"], row["of"]) for row in ROWS}


def commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - of click
    if not getattr(command, "commands", None):
        yield path, command
    else:
        for name in command.commands:
            yield from commands(f"{path} {name}", part_of(command, name))


def test_the_table_has_every_option_of_the_commands() -> None:
    """Each command with an option that names another queue is in the table of programs, with that option."""
    options = set()
    for name, program in (("queuey", queuey.cli), ("qdo", qdo.cli)):
        for subcommand in program.COMMANDS:
            for path, command in commands(f"{name} {subcommand}", program.load(subcommand)):
                words = {option for option in options_of(command) if re.search(r"-(queue|letter)\b", option)}
                options |= {(path, option) for option in words - {"--queue", "--max-queue-name", "--wait-for-queue"}}
    documented = [(row["program"], row["names another queue"]) for row in PROGRAMS]
    missing = {
        (path, option)
        for path, option in options
        if not any(path in program and option in named for program, named in documented)
        and not path.startswith("queuey pipeline ")
    }
    assert {option for _, option in options} >= {"--dead-letter", "--dead-queue", "--queue-field"}
    assert missing == set()
