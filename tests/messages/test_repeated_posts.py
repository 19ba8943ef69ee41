"""Posts whose first attempt the store has undone: clients of every API are answered as if it had not been made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from queuey.facades.settings import EmodbFacade, Facades, MqFacade
from queuey.model.errors import WriteUndone
from queuey.storage import KeyedPosts, Messages, Names, Store, bridge
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.interposed_store import InterposedStore
from tests.web.caller import Caller


@pytest.fixture
def undoing(store: Store, between: InterposedStore) -> Callable[[int], list[str]]:
    """Makes this many posts fail with WriteUndone; returns the list of calls that posts make from then on."""
    calls: list[str] = []

    def undo(times: int) -> list[str]:
        async def append(method: Callable[..., Any], *args: Any, **how: Any) -> Any:  # noqa: ANN401 - of the method
            calls.append(method.__name__)
            if len(calls) > times:
                return await method(*args, **how)
            raise WriteUndone("Cassandra wrote the message too late; the write is undone")

        between.instead(Messages.append, partial(append, store.messages.append))
        between.instead(KeyedPosts.append_once, partial(append, store.keyed_posts.append_once))
        return calls

    return undo


@pytest.mark.parametrize(
    "headers", [{}, {"Idempotency-Key": "k"}, {"X-After": "%"}], ids=["plain", "under a key", "after another"]
)
def test_one_message(owner: Caller, undoing: Callable[[int], list[str]], headers: dict[str, str]) -> None:
    """The answer is 201 with the place of the one message that is there."""
    owner.create("q", partitions=3)
    before = owner.post("q", "before")
    calls = undoing(1)
    reply = owner("POST", "q", "x", headers={name: text.replace("%", before["key"]) for name, text in headers.items()})
    assert (reply.status, len(calls)) == (201, 2)
    [stored] = reply.messages
    assert stored["key"] > before["key"]
    assert sorted(owner.get("q", partitions="*").bodies) == ["before", "x"]
    [shown] = owner.get(f"q/{stored['partition']}:{stored['key']}").messages
    assert shown["body"] == "x"


def test_both_fail(owner: Caller, undoing: Callable[[int], list[str]]) -> None:
    """After two attempts the answer is the same as after one: 503, nothing stored, and when to retry."""
    owner.create("q")
    calls = undoing(9)
    reply = owner("POST", "q", "x")
    assert (reply.status, reply.json["outcome"], reply.headers["Retry-After"]) == (503, "none", "1")
    assert list(reply.errors) == ["StoreUnavailable"]
    assert len(calls) == 2
    assert owner.batch("q", {"body": "x"}).json["outcomes"] == ["none"]
    assert len(calls) == 3  # The budget of this second is used up.
    assert owner.get("q").bodies == []


def test_by_its_id_and_by_its_name(owner: Caller, store: Store, between: InterposedStore) -> None:
    """Messages at ids that the client gives, and named ones, are written once."""
    owner.create("q")
    calls = []

    def fail(*_: object, **__: object) -> None:
        calls.append(1)
        raise WriteUndone("taken back")

    for method in (Messages.put, Names.write_named):
        between.instead(method, fail)
    replies = [owner("PUT", "q/" + "0" * 12 + "10008" + "0" * 15, "x"), owner("PUT", "q/named/n", "x")]
    assert [reply.status for reply in replies] == [503, 503]
    assert len(calls) == 2


def test_delayed(owner: Caller, undoing: Callable[[int], list[str]]) -> None:
    """Delayed messages are not repeated."""
    owner.create("q")
    calls = undoing(1)
    assert owner.batch("q", {"body": "a"}, {"body": "b", "delay": 1}).status == 503
    assert len(calls) == 1


def test_facades(store: Store, between: InterposedStore, undoing: Callable[[int], list[str]]) -> None:
    """MQ and EmoDB repeat as well."""
    bridge.run(store.applications.create_application("shop"))
    served = Facades(app="shop", mq=MqFacade(prefix="/mq"), emodb=EmodbFacade(beside=True))
    caller = Caller(facade_app(between.store, served))
    assert caller.send("GET", "/mq/q/messages").status == 204
    calls = undoing(1)
    assert caller.send("POST", "/mq/q/messages", b"x").status == 201
    assert caller.send("GET", "/mq/q/messages").body == b"x"
    assert caller.send("GET", "/mq/q/messages").status == 204
    assert len(calls) == 2


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "FIFO"])
def test_sqs(store: Store, between: InterposedStore, undoing: Callable[[int], list[str]], *, fifo: bool) -> None:
    """SQS repeats as well, also the first message of a group in a batch of a FIFO queue."""
    bridge.run(store.applications.create_application("shop"))
    sqs = Sqs(facade_app(between.store, Facades(only="sqs"), secret=DEPLOYMENT), new_key(store, "shop"))
    url = sqs.create("q.fifo", FifoQueue="true", ContentBasedDeduplication="true") if fifo else sqs.create("q")
    calls = undoing(1)
    group = {"MessageGroupId": "g"} if fifo else {}
    entries = [{"Id": body, "MessageBody": body, **group} for body in "ab"]
    sent = sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == ["a", "b"]
    assert len(calls) == (3 if fifo else 2)
    received = sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [one["Body"] for one in received] == ["a", "b"] or (not fifo and len(received) == 2)
