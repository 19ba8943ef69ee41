"""Dead letters in a real service: stored whole, listed, and sent back."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from qdo.partitions import Queue
from queuey.client import Message, Outgoing, ServiceUnavailable, TooLarge, deadletters
from queuey.client.deadletters import Cause, DeadLetter, DeadLetterFilter, Redriven
from tests.qdo.consumer.conftest import System
from tests.qdo.consumer.controlled_transport import refuse_method

CAUSE = Cause(attempts=3, error="acme.errors.Late", text="too late", at=1_795_145_194.25)


async def send_and_get(system: System, queue: Queue, *messages: Outgoing | str) -> list[Message]:
    return await system.client.get(queue.name, await system.client.send_many(queue.name, messages))


async def letters(system: System, queue: Queue, **wanted: Any) -> list[DeadLetter]:  # noqa: ANN401 - a filter
    return [one async for one in deadletters.dead_letters(system.client, filter_by_queue(queue, **wanted))]


def filter_by_queue(queue: Queue, **wanted: Any) -> DeadLetterFilter:  # noqa: ANN401 - a filter
    return DeadLetterFilter(queues=(queue.name,), **wanted)


async def bury(system: System, queue: Queue, *messages: Message, cause: Cause = CAUSE) -> None:
    for message in messages:
        await deadletters.bury(system.client, queue.name, message, cause)


WHOLE = {
    "text": Outgoing("text"),
    "text with everything": Outgoing("é", content_type="text/plain; charset=utf-8", headers={"a": "1", "b": "2"}),
    "bytes": Outgoing(b"\xff\xfe\x00", content_type="image/png"),
    "JSON text": Outgoing('{"a": 1}', content_type="application/json"),
    "JSON value": Outgoing(json={"a": [1, None, 2**70, 1e300], "é": "ü"}),
    "JSON null": Outgoing(json=None),
    "JSON string": Outgoing(json="text"),
    "as many headers as can be": Outgoing("x", headers={f"h{at}": str(at) for at in range(16)}),
    "headers that HTTP cannot carry": Outgoing("x", headers={"under_score": "1", "name": "Zoë", "empty": ""}),
    "a content type that HTTP cannot carry": Outgoing("x", content_type="text/zoë"),
    "headers of ours": Outgoing("x", headers={"queuey-dead-id": "mine"}),
    "large": Outgoing("x" * 262_144),
}


async def test_messages_come_back_as_they_were(system: System) -> None:
    """A message keeps body, type and headers as a dead letter and after it is sent back."""
    queue = await system.queue()
    sent = await send_and_get(system, queue, *WHOLE.values())
    await bury(system, queue, *sent)
    lying = (await system.client.read(f"{queue.name}.dead")).messages
    assert [message.body for message in lying] == [message.body for message in sent]
    found = await letters(system, queue)
    assert [(each.queue, each.partition, each.id, each.cause, each.lost) for each in found] == [
        (queue.name, message.partition, message.id, CAUSE, 0) for message in sent
    ]
    assert [(each.headers, each.content_type) for each in found] == [(one.headers, one.content_type) for one in sent]
    assert await deadletters.redrive(system.client, filter_by_queue(queue)) == Redriven({queue.name: len(sent)})
    both = [message async for message in system.client.read_all(queue.name)]
    for message, back in zip(both[: len(sent)], both[len(sent) :], strict=True):
        assert (back.body, back.content_type, back.headers) == (message.body, message.content_type, message.headers)
    assert await letters(system, queue) == []


async def test_a_json_value_is_kept_as_it_was_written(system: System) -> None:
    """A JSON body keeps its exact text, though readers see only its value; if the text is gone, the value is kept."""
    queue = await system.queue()
    text = b'{"price": 1.50, "price2": 1e2}'
    sent, gone = await send_and_get(system, queue, Outgoing(json=msgspec.Raw(text)), Outgoing(json=[1, {"a": "b"}]))
    await system.client.delete(queue.name, gone)
    await bury(system, queue, sent, gone)
    first, second = await letters(system, queue)
    lying = await system.client.get_raw(first.lies_in, (first.stored_partition, first.stored_id))
    assert (lying.body, first.json) == (text, True)
    assert (second.body, second.json) == ('[1, {"a": "b"}]', True)
    await deadletters.redrive(system.client, filter_by_queue(queue))
    page = await system.client.read(queue.name)
    assert (await system.client.get_raw(queue.name, page.messages[1])).body == text


async def test_headers_give_way_when_there_is_no_room(system: System) -> None:
    """A message whose headers fill the service's limit becomes a dead letter that names the missing headers."""
    queue = await system.queue()
    (sent,) = await send_and_get(system, queue, Outgoing("x", headers={"h": "x" * 8190}))
    await bury(system, queue, sent)
    (dead_letter,) = await letters(system, queue)
    assert (dead_letter.headers, dead_letter.lost, dead_letter.body) == ({}, 1, "x")


async def test_the_queue_is_made_like_the_one_it_is_for(system: System) -> None:
    """The queue of dead letters has the partitions and consistency of its queue, and grows with it."""
    queue = await system.queue(partitions=2, consistency="weak")
    (message,) = await send_and_get(system, queue, Outgoing("x", partition=2))
    await bury(system, queue, message)
    info = await system.client.info(f"{queue.name}.dead")
    assert (info.partitions, info.consistency) == (2, "weak")
    await system.client.update_queue(queue.name, partitions=5)
    (two,) = await send_and_get(system, queue, Outgoing("y", partition=4))
    await bury(system, queue, two)
    assert (await system.client.info(f"{queue.name}.dead")).partitions == 5
    assert [dead_letter.partition for dead_letter in await letters(system, queue)] == [2, 4]


async def test_a_queue_that_is_gone_leaves_its_dead_letters(system: System) -> None:
    """Messages in hand when their queue is deleted become dead letters that cannot be sent back, with the reason."""
    queue = await system.queue(partitions=3)
    (message,) = await send_and_get(system, queue, Outgoing("x", partition=3))
    await system.client.delete_queue(queue.name)
    await bury(system, queue, message)
    redriven = await deadletters.redrive(system.client, filter_by_queue(queue))
    assert (redriven.sent, [text[: len(queue.name) + 23] for text in redriven.left]) == (
        {},
        [f"Queue '{queue.name}' does not exist"],
    )
    await system.client.create_queue(queue.name, partitions=1)
    redriven = await deadletters.redrive(system.client, filter_by_queue(queue))
    assert redriven.left == {f"queue {queue.name} has only 1 partitions": 1}
    assert [(each.partition, each.id) for each in redriven.samples] == [(message.partition, message.id)]
    await system.client.update_queue(queue.name, partitions=3)
    assert await deadletters.redrive(system.client, filter_by_queue(queue)) == Redriven({queue.name: 1})


async def test_many_are_sent_back_in_order(system: System) -> None:
    """Dead letters of more than one page or call are sent back in their original order."""
    queue = await system.queue()
    sent = await send_and_get(system, queue, *map(str, range(130)))
    await bury(system, queue, *sent)
    await system.client.purge_queue(queue.name)
    assert await deadletters.redrive(system.client, filter_by_queue(queue), ttl=60) == Redriven({queue.name: 130})
    back = [message.body async for message in system.client.read_all(queue.name, limit=1000)]
    assert back == [str(at) for at in range(130)]


async def test_what_was_not_sent_stays(system: System) -> None:
    """If the call fails the letters stay; the next one sends each of them once."""
    queue = await system.queue()
    await bury(system, queue, *await send_and_get(system, queue, "1", "2"))
    client = system.connect()
    system.transport.answer = refuse_method("POST")
    with pytest.raises(ServiceUnavailable) as failed:
        await deadletters.redrive(client, filter_by_queue(queue))
    assert "at least 0 dead letters" in "".join(failed.value.__notes__)
    assert await deadletters.redrive(system.client, filter_by_queue(queue)) == Redriven({queue.name: 2})
    assert [message.body for message in (await system.client.read(queue.name)).messages] == ["1", "2"] * 2


async def test_what_the_service_will_never_take_is_an_error(system: System) -> None:
    """A refusal that is not about headers is raised at once, without attempts without headers."""
    queue = await system.queue()
    (message,) = await send_and_get(system, queue, "x")
    client = system.connect()

    def too_large(request: httpx2.Request) -> httpx2.Response | None:
        if request.method != "PUT":
            return None
        return httpx2.Response(413, json={"status": "error", "error_msg": {"body": "Longer than maximum length"}})

    system.transport.answer = too_large
    with pytest.raises(TooLarge):
        await deadletters.bury(client, queue.name, message, CAUSE)
    assert system.transport.methods == ["PUT"] * 3
