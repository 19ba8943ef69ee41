"""Messages by name, for both clients, on a real service."""

from __future__ import annotations

from typing import Any

import pytest

from queuey.client import Conflict, InvalidArgument, NameTaken
from tests.client.conftest import Connect
from tests.client.scripted import Script, broken, message_id, ok, receipts

Queuey = Any
"""A client of either kind."""
NAME = "a % b"


def test_a_name_stands_for_the_newest_value(queuey: Queuey, queue: str) -> None:
    """A message is created once, replaced, fetched and deleted by its name; who had claimed it before learns that."""
    named, jobs = queuey.named(queue), queuey.job_queue(queue)
    first = named.create(NAME, "a", ttl=600, headers={"by": "ann"})
    assert named.create(NAME, "a", ttl=600, headers={"by": "ann"}) == first
    with pytest.raises(NameTaken, match="a % b"):
        named.create(NAME, "b")
    [claimed] = jobs.receive()
    second = named.set(NAME, json={"b": [1]})
    message = named.get(NAME)
    assert (message.id, message.body, message.partition) == (second.id, {"b": [1]}, second.partition)
    assert [(refused.receipt, refused.status) for refused in jobs.ack(claimed)] == [(claimed.receipt, "superseded")]
    [claimed] = jobs.receive()
    assert claimed.message.id == second.id
    jobs.ack(claimed)
    assert named.get(NAME) is None
    named.set(NAME, b"\xff")
    named.delete(NAME)
    named.delete(NAME)
    assert named.get(NAME) is None
    assert jobs.receive() == []


def test_names_and_messages_that_cannot_be(connect: Connect) -> None:
    """A name that would be another resource, or what a named message cannot have, is refused unsent."""
    script = Script()
    named = connect(script).named("q")
    for name in ("", ".", "..", "a/b", "x" * 256, "\ud800"):
        for call in (lambda n: named.set(n, "x"), lambda n: named.create(n, "x"), named.get, named.delete):
            with pytest.raises(InvalidArgument, match="named"):
                call(name)
    for options in ({"partition": 1}, {"key": "k"}, {"delay": 1}, {"headers": {"a": "é"}}):
        with pytest.raises(InvalidArgument):
            named.set("n", "x", **options)
    assert script.requests == []


def test_repeated_after_a_lost_answer(connect: Connect) -> None:
    """A call whose answer was lost is sent again; a conflict is not."""
    script = Script(broken, receipts(), broken, ok(messages=[]), ok(status=409, error_msg={"NameTaken": "x"}))
    named = connect(script).named("q")
    assert named.set("n", "x").id == message_id(1)
    named.delete("n")
    with pytest.raises(Conflict):
        named.create("n", "x")
    assert [request.method for request in script.requests] == ["PUT", "PUT", "DELETE", "DELETE", "POST"]
    assert script.requests[0].url.raw_path == b"/v1/acme/q/named/n"
