"""Dead letters that programs write and send back: by the rights of their keys, without harm to other messages."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from queuey.api.claims import Backlog
from queuey.client import AsyncClient, AsyncJobQueue, Message, NotAllowed, deadletters
from queuey.client.deadletters import Cause, DeadLetterFilter, Redriven, bury, dead_letters, headers_for, redrive
from tests.client.live import Connect, connected
from tests.replacing import replace, replace_in

CAUSE = Cause(attempts=3, error="acme.errors.Late", text="too late", at=1_795_145_194.25)
ID = "0123456789ab11e88000000000000001"


@pytest.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Connect]:
    """Makes clients with the rights of their keys, all on one service."""
    async with connected(tmp_path / "data") as make:
        yield make


@pytest.fixture
async def owner(connect: Connect) -> AsyncClient:
    return connect()


async def read_stored(client: AsyncClient, queue: str) -> list[Message]:
    return [message async for message in client.read_all(queue, partitions="*", delay=False)]


async def bodies(client: AsyncClient, queue: str) -> list[str]:
    return sorted(str(message.body) for message in await read_stored(client, queue))


async def test_nothing_is_overwritten(owner: AsyncClient) -> None:
    """In a queue of another name, letters with the same id overwrite no messages; it gets no more partitions."""
    await owner.create_queue("orders", partitions=2)
    await owner.create_queue("payroll")
    await owner.put("payroll", f"1:{ID}", "wages")
    jobs = [Message(ID, "0", partition, f"job {partition}") for partition in (1, 2)]
    for job in (*jobs, *jobs):
        assert await bury(owner, "orders", job, CAUSE, dead_queue="payroll") == "payroll"
    assert await bodies(owner, "payroll") == ["job 1", "job 2", "wages"]
    assert (await owner.info("payroll")).partitions == 1
    selection = DeadLetterFilter(queues=("orders",), dead_queue="payroll")
    assert {one.id for one in [one async for one in dead_letters(owner, selection)]} == {ID}
    assert await redrive(owner, selection) == Redriven({"orders": 2})
    assert await redrive(owner, selection) == Redriven()
    assert await bodies(owner, "payroll") == ["wages"]
    assert await bodies(owner, "orders") == ["job 1", "job 2"]


@pytest.mark.parametrize("dead_queue", [None, "failed"])
async def test_the_right_to_send_is_enough(connect: Connect, owner: AsyncClient, dead_queue: str | None) -> None:
    """A worker that may only send to the queue of dead letters stores them there, once if it repeats that."""
    await owner.create_queue("orders", partitions=2)
    target = dead_queue or "orders.dead"
    await owner.create_queue(target)
    worker = connect("read,claim,send", f"orders,{target}")
    await owner.send("orders", "job", partition=2)
    (job,) = await read_stored(worker, "orders")
    for _ in range(2):
        await bury(worker, "orders", job, CAUSE, dead_queue=dead_queue)
    assert await bodies(owner, target) == ["job"]
    assert (await owner.info(target)).partitions == 1


async def test_letters_of_hidden_queues_stay(connect: Connect, owner: AsyncClient) -> None:
    """In a shared queue of dead letters, those of queues hidden from the key stay, and the others go back."""
    for name in ("orders", "mails", "failed"):
        await owner.create_queue(name)
    for queue in ("mails", "gone", "orders"):
        await bury(owner, queue, Message(ID, "0", 1, queue), CAUSE, dead_queue="failed")
    partial = connect("read,send,delete", "orders,failed")
    done = await redrive(partial, DeadLetterFilter(patterns=("*",), dead_queue="failed"))
    assert done.sent == {"orders": 1}
    assert {text.partition(":")[0] for text in done.left} == {"queue mails", "Queue 'gone' does not exist. Create it"}
    assert await bodies(owner, "failed") == ["gone", "mails"]


async def test_a_small_queue_of_dead_letters_takes_all(connect: Connect, owner: AsyncClient) -> None:
    """A letter whose partition is missing there goes to another one, if the worker may not add partitions."""
    await owner.create_queue("orders", partitions=3)
    await owner.create_queue("orders.dead")
    worker = connect("read,send,delete", "orders,orders.dead")
    await owner.send("orders", "job", partition=3)
    (job,) = await read_stored(worker, "orders")
    for _ in range(2):
        assert await bury(worker, "orders", job, CAUSE) == "orders.dead"
    assert await bodies(owner, "orders.dead") == ["job"]
    assert await redrive(owner, DeadLetterFilter(queues=("orders",))) == Redriven({"orders": 1})
    assert {message.partition for message in await read_stored(owner, "orders")} == {3}


@pytest.mark.parametrize("dead_queue", [None, "payroll", "invented"])
async def test_no_right_no_letter(connect: Connect, owner: AsyncClient, dead_queue: str | None) -> None:
    """A worker stores no letter where its key does not reach, and nothing is created or changed for it."""
    for name in ("orders", "payroll"):
        await owner.create_queue(name)
    before = [queue.name async for queue in owner.queues()]
    worker = connect("admin,send,read,claim,delete", "orders")
    job = Message(ID, "0", 1, "job")
    with pytest.raises(NotAllowed):
        await bury(worker, "orders", job, CAUSE, dead_queue=dead_queue)
    assert [queue.name async for queue in owner.queues()] == before
    assert await read_stored(owner, "payroll") == []


async def test_a_forged_letter_goes_nowhere(connect: Connect, owner: AsyncClient) -> None:
    """A letter is only trusted in the dead letters of the queue that it names, or where the operator looks by name."""
    for name in ("orders-a", "orders-a.dead", "orders-b", "payroll", "payroll.dead"):
        await owner.create_queue(name)
    attacker = connect("send", "orders-a.dead")
    forged = headers_for("payroll", Message(ID, "0", 1, "forged"), CAUSE)
    await attacker.send("orders-a.dead", "forged", headers=forged)
    everything = DeadLetterFilter(patterns=("*",))
    for dry_run in (True, False):
        done = await redrive(owner, everything, dry_run=dry_run)
        reason = "dead letters of payroll do not go to orders-a.dead: check them, then name --dead-queue"
        assert (done.sent, done.left) == ({}, {reason: 1})
    (letter,) = await read_stored(owner, "orders-a.dead")
    assert [(one.partition, one.id) for one in done.samples] == [(letter.partition, letter.id)]
    # Nor does it where another queue keeps its dead letters by option.
    await owner.update_queue("orders-b", dead_letter="orders-a.dead")
    assert (await redrive(owner, everything)).sent == {}
    assert await read_stored(owner, "payroll") == []
    named = DeadLetterFilter(queues=("payroll",), dead_queue="orders-a.dead")
    assert await redrive(owner, named) == Redriven({"payroll": 1})
    assert await bodies(owner, "payroll") == ["forged"]


async def test_a_letter_of_another_is_not_removed(owner: AsyncClient) -> None:
    """Sending a letter back removes that letter, whatever id and partition it claims to have had."""
    for name in ("orders", "orders.dead"):
        await owner.create_queue(name)
    await owner.put("orders.dead", f"1:{ID}", "kept")
    lies = headers_for("orders", Message(ID, "0", 1, "lies"), CAUSE)
    await owner.send("orders.dead", "lies", headers=lies)
    assert await redrive(owner, DeadLetterFilter(queues=("orders",))) == Redriven({"orders": 1})
    assert await bodies(owner, "orders.dead") == ["kept"]


@pytest.mark.parametrize("selection", [DeadLetterFilter(queues=("orders",)), DeadLetterFilter(patterns=("ord*",))])
async def test_letters_that_are_still_being_stored(owner: AsyncClient, selection: DeadLetterFilter) -> None:
    """A redrive begins when the service has stored what became dead letters before; else it says how many are left."""
    await owner.create_queue("orders")
    job = Message(ID, "0", 1, "job")
    await owner.create_queue("orders.dead")
    counts = iter([2, 1])
    real = AsyncJobQueue.backlog

    async def backlog(self: AsyncJobQueue, limit: int | None = None) -> Backlog:
        publishing = next(counts, 0)
        if publishing == 1:  # It is stored after this answer.
            await bury(owner, "orders", job, CAUSE)
        return msgspec.structs.replace(await real(self, limit), publishing=publishing)

    with replace(AsyncJobQueue.backlog, backlog):
        assert await redrive(owner, selection) == Redriven({"orders": 1})
        counts = itertools.repeat(3)
        reason = "queue orders is still storing dead letters. Try again"
        assert await redrive(owner, selection, dry_run=True) == Redriven(left={reason: 3})
        with replace_in(deadletters, deadletters.MAX_STORE_WAIT, 0.0):
            assert await redrive(owner, selection) == Redriven(left={reason: 3})


async def test_a_key_that_may_not_count_redrives_at_once(connect: Connect, owner: AsyncClient) -> None:
    """Without the right to count a queue's messages, a redrive does not wait, and leaves its dead letters."""
    await owner.create_queue("orders")
    await bury(owner, "orders", Message(ID, "0", 1, "job"), CAUSE)
    narrow = connect("read,delete", "orders.dead")
    left = (await redrive(narrow, DeadLetterFilter(dead_queue="orders.dead", queues=("orders",)))).left
    assert [(text.partition(":")[0], count) for text, count in left.items()] == [("queue orders", 1)]


async def test_a_repeated_redrive_sends_each_once(connect: Connect, owner: AsyncClient) -> None:
    """A location given twice, or a call whose removal was lost, sends a letter once; the caller needs each right."""
    await owner.create_queue("orders")
    place, job = (1, ID), Message(ID, "0", 1, "job")
    await bury(owner, "orders", job, CAUSE)
    for rights in ("read,send", "delete,send"):
        with pytest.raises(NotAllowed):
            await connect(rights, "orders,orders.dead").redrive("orders.dead", place)
    reason = "queue orders: "
    left = (await connect("read,delete", "orders.dead").redrive("orders.dead", place)).left
    assert [text[: len(reason)] for text in left] == [reason]
    assert await owner.redrive("orders.dead", [place, place, (2, ID)]) == Redriven({"orders": 1})
    await bury(owner, "orders", job, CAUSE)  # As if the first call had ended before the removal.
    assert await owner.redrive("orders.dead", place) == Redriven(already_sent=1)
    assert (await bodies(owner, "orders"), await bodies(owner, "orders.dead")) == (["job"], [])
