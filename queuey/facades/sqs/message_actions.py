"""Actions about messages, on the event loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement, parse_receipt
from queuey.errors import KeyInUse, StoreUnavailable
from queuey.facades.sqs import requests
from queuey.facades.sqs.attributes import (
    MAX_DELAY,
    MAX_MESSAGE,
    MAX_VISIBILITY,
    MAX_WAIT,
    Kept,
    is_fifo,
    kept_of,
)
from queuey.facades.sqs.errors import AWAY, SqsError, in_range, invalid
from queuey.facades.sqs.messages import (
    FifoDraft,
    check_fifo_batch,
    check_id,
    draft_of,
    fifo_draft_of,
    received,
    sent_result,
    size_of,
)
from queuey.facades.sqs.requests import Asked, Result
from queuey.messages import Queue
from queuey.service import ClaimDelivery, Draft, Service
from queuey.service.claims.requests import ClaimUndecided
from queuey.service.messages import Placed
from queuey.service.reading import SHORT_BYTES
from queuey.service.watching import Waiter
from queuey.web.authorization import Authorization
from queuey.web.v1.claims import mark_of

T = TypeVar("T")
E = TypeVar("E", bound="requests.Entry | requests.SentEntry")
MIN_CLAIM = 5.0
"""Min time of a claim that should end at once, in seconds: it is released when the answer is ready."""
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class MessageActions:
    """Actions on messages.

    Args:
        service: The use cases.
        authorization: Checks what an access key may do.
    """

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._messages = service.messages
        self._claims = service.claims
        self._authorization = authorization

    async def _on(self, asked: Asked, url: str, action: Any, call: Callable[[Queue], Awaitable[T]]) -> T:  # noqa: ANN401
        """Makes a call with a queue that the caller may use."""
        where = asked.where(url)
        access = self._authorization.admit_at_once(asked.request, where, action)
        if access is None:
            access = await self._authorization.admit(asked.request, where, action)
        return await access.apply(call)

    # Sending

    async def send(self, asked: Asked) -> Result:
        given = asked.read(requests.SendMessage)

        async def send(queue: Queue) -> Result:
            if is_fifo(queue):
                draft, key = fifo_draft_of(given, queue, _trace(asked))
            else:
                draft, key = _draft(given, kept_of(queue), _trace(asked)), None
            posted = await self._messages.post(queue, [draft], key=key)
            return sent_result(given, posted.locations[0], fifo=is_fifo(queue))

        return await self._on(asked, given.queue_url, "send", send)

    async def send_batch(self, asked: Asked) -> Result:
        """Stores messages: those that can be; in a standard queue all or none of them."""
        given = asked.read(requests.SendMessageBatch)
        _check_batch(given.entries)
        size = sum(size_of(each) for each in given.entries)
        if size > MAX_MESSAGE:
            text = f"Batch requests cannot be longer than {MAX_MESSAGE} bytes. You have sent {size} bytes."
            raise SqsError("BatchRequestTooLong", text)

        async def send(queue: Queue) -> Result:
            if is_fifo(queue):
                return await self._send_batch_in_order(queue, given.entries, _trace(asked))
            kept, trace = kept_of(queue), _trace(asked)
            drafts, failed = _each(given.entries, lambda one: _draft(one, kept, trace))
            posted = await self._messages.post(queue, [draft for _, draft in drafts])
            done = [
                {"Id": one.id, **sent_result(one, location, fifo=False)}
                for (one, _), location in zip(drafts, posted.locations, strict=True)
            ]
            return _batch_result(done, failed)

        return await self._on(asked, given.queue_url, "send", send)

    async def _send_batch_in_order(self, queue: Queue, entries: Sequence[requests.SentEntry], trace: str) -> Result:
        """Stores messages of a FIFO queue: those of a group one after another, and none behind one that fails.

        That all clocks are past them is awaited once, and not for each: ten in a group would take longer than a request
        may.
        """
        check_fifo_batch(entries, queue)
        drafts, failed = _each(entries, lambda one: fifo_draft_of(one, queue, trace))
        groups: dict[str | None, list[tuple[requests.SentEntry, FifoDraft]]] = {}
        for one, draft in drafts:
            groups.setdefault(one.message_group_id, []).append((one, draft))
        done: dict[str, Result] = {}
        placed: list[Placed] = []

        async def send(group: Sequence[tuple[requests.SentEntry, FifoDraft]]) -> list[Result]:
            for at, (one, draft) in enumerate(group):
                try:
                    posted = await self._messages.post(queue, [draft.draft], key=draft.key, more=True)
                except (StoreUnavailable, KeyInUse) as error:
                    away = SqsError(AWAY, str(error), 503)
                    return [_failure(left.id, away) for left, _ in group[at:]]
                placed.append((draft.draft.delay, posted.locations[0]))
                done[one.id] = {"Id": one.id, **sent_result(one, posted.locations[0], fifo=True)}
            return []

        for lost in await asyncio.gather(*map(send, groups.values())):
            failed += lost
        await self._messages.settle_order(queue, placed)
        return _batch_result([done[one.id] for one in entries if one.id in done], failed)

    # Receiving

    async def receive(self, asked: Asked) -> Result:
        """Claims messages; waits for them if it is to."""
        given = asked.read(requests.ReceiveMessage)
        limit = in_range("MaxNumberOfMessages", given.max_number_of_messages, 1, requests.MAX_ENTRIES)
        where = asked.where(given.queue_url)
        access = self._authorization.admit_at_once(asked.request, where, "work")
        if access is None:
            access = await self._authorization.admit(asked.request, where, "work")
        wait = in_range("WaitTimeSeconds", given.wait_time_seconds, 0, MAX_WAIT, kept_of(access.queue).wait)

        async def attempt(waiter: Waiter | None) -> Result:
            current = access if waiter is None else await self._authorization.admit(asked.request, where, "work")
            await asked.request.reserve(SHORT_BYTES)
            return await current.apply(partial(receive, waiter=waiter))

        async def receive(queue: Queue, waiter: Waiter | None) -> Result:
            visibility = kept_of(queue).visibility
            seconds = in_range("VisibilityTimeout", given.visibility_timeout, 0, MAX_VISIBILITY, visibility)
            claimed = await self._claims.claim(
                queue, limit=limit, ttl=seconds or MIN_CLAIM, waiter=waiter, max_bytes=SHORT_BYTES, gather=True
            )
            if claimed and not seconds:
                await self._claims.release(queue, [one.receipt for one in claimed])
            return _received(claimed, queue, asked.region, given)

        try:
            return await asked.request.until_found(wait, attempt, ClaimUndecided)
        except ClaimUndecided:  # Some may be free, and clients of SQS ask again as it is.
            return {}

    # Receipts

    async def delete(self, asked: Asked) -> Result:
        """Acknowledges a message. That it is gone, or was received by another since, is no error."""
        given = asked.read(requests.DeleteMessage)

        async def delete(queue: Queue) -> Result:
            [settled] = await self._claims.acknowledge(queue, [_receipt(given.receipt_handle, queue)])
            if is_fifo(queue) and settled.status is ReceiptStatus.SUPERSEDED:
                raise _expired()
            return {}

        return await self._on(asked, given.queue_url, "work", delete)

    async def delete_batch(self, asked: Asked) -> Result:
        given = asked.read(requests.DeleteMessageBatch)
        _check_batch(given.entries)

        async def delete(queue: Queue) -> Result:
            found, failed = _each(given.entries, lambda one: _receipt(one.receipt_handle, queue))
            settled = await self._claims.acknowledge(queue, [receipt for _, receipt in found])
            lost = {
                one.id
                for (one, _), each in zip(found, settled, strict=True)
                if is_fifo(queue) and each.status is ReceiptStatus.SUPERSEDED
            }
            failed += [_failure(name, _expired()) for name in lost]
            return _batch_result([{"Id": one.id} for one, _ in found if one.id not in lost], failed)

        return await self._on(asked, given.queue_url, "work", delete)

    async def change(self, asked: Asked) -> Result:
        """Delivers a message again after some seconds, and not before."""
        given = asked.read(requests.ChangeVisibility)
        seconds = in_range("VisibilityTimeout", given.visibility_timeout, 0, MAX_VISIBILITY)

        async def change(queue: Queue) -> Result:
            receipt = _receipt(given.receipt_handle, queue)
            [settled] = await self._claims.release(queue, [receipt], float(seconds))
            if settled.status is not ReceiptStatus.DONE:
                raise _not_there(settled, given.receipt_handle)
            return {}

        return await self._on(asked, given.queue_url, "work", change)

    async def change_batch(self, asked: Asked) -> Result:
        given = asked.read(requests.ChangeVisibilityBatch)
        _check_batch(given.entries)

        async def change(queue: Queue) -> Result:
            kept = kept_of(queue)

            def parse(one: requests.ChangedEntry) -> tuple[int, ClaimReceipt]:
                seconds = in_range("VisibilityTimeout", one.visibility_timeout, 0, MAX_VISIBILITY, kept.visibility)
                return seconds, _receipt(one.receipt_handle, queue)

            found, failed = _each(given.entries, parse)
            settled: dict[str, Settlement] = {}
            for seconds in dict.fromkeys(seconds for _, (seconds, _) in found):
                some = [(one.id, receipt) for one, (each, receipt) in found if each == seconds]
                done = await self._claims.release(queue, [receipt for _, receipt in some], float(seconds))
                settled |= {name: each for (name, _), each in zip(some, done, strict=True)}
            lost = {name: each for name, each in settled.items() if each.status is not ReceiptStatus.DONE}
            handles = {one.id: one.receipt_handle for one, _ in found}
            failed += [_failure(name, _not_there(each, handles[name])) for name, each in lost.items()]
            return _batch_result([{"Id": one.id} for one, _ in found if one.id not in lost], failed)

        return await self._on(asked, given.queue_url, "work", change)


def _trace(asked: Asked) -> str:
    """Returns the header by which X-Ray follows a request."""
    return asked.request.headers.get("x-amzn-trace-id", "")


def _draft(given: requests.Sent, kept: Kept, trace: str) -> Draft:
    if given.message_deduplication_id is not None:
        raise invalid("MessageDeduplicationId", given.message_deduplication_id, "Only FIFO queues have these.")
    if given.message_group_id is not None:
        check_id("MessageGroupId", given.message_group_id)
    delay = in_range("DelaySeconds", given.delay_seconds, 0, MAX_DELAY, kept.delay)
    return draft_of(given, delay, time.time(), kept.size, trace, fifo=False)


def _received(claimed: Sequence[ClaimDelivery], queue: Queue, region: str, given: requests.ReceiveMessage) -> Result:
    if not claimed:
        return {}
    system = frozenset((*given.attribute_names, *given.message_system_attribute_names))
    show = partial(
        received, queue=queue, region=region, now=time.time(), system=system, names=given.message_attribute_names
    )
    return {"Messages": [show(one) for one in claimed]}


def _receipt(handle: str, queue: Queue) -> ClaimReceipt:
    """Reads a receipt handle.

    Raises:
        SqsError: It is none, or of another queue.
    """
    text, _, mark = handle.rpartition("-")
    try:
        receipt = parse_receipt(text)
    except ValueError:
        receipt = None
    if receipt is None or not receipt.number:
        raise SqsError(
            "ReceiptHandleIsInvalid", f'The input receipt handle "{handle[:100]}" is not a valid receipt handle.'
        )
    if mark != mark_of(queue.qid) or receipt.partition > queue.partitions:
        text = "The receipt handle is of another queue, or of before this one was purged."
        raise SqsError("ReceiptHandleIsInvalid", text)
    return receipt


def _not_there(settled: Settlement, handle: str) -> SqsError:
    if settled.status is ReceiptStatus.SUPERSEDED:
        return SqsError("MessageNotInflight", "The message was received again since, under another receipt handle.")
    return invalid("ReceiptHandle", handle, "Message does not exist or is not available for visibility timeout change.")


def _expired() -> SqsError:
    return invalid("ReceiptHandle", "", "The receipt handle has expired: the message was received again since.")


# Batches


def _check_batch(entries: Sequence[E]) -> None:
    """Refuses a batch whose entries cannot be told apart, or are too many."""
    names = [entry.id for entry in entries]
    if not names:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(names) > requests.MAX_ENTRIES:
        text = f"Maximum number of entries per request are {requests.MAX_ENTRIES}. You have sent {len(names)}."
        raise SqsError("TooManyEntriesInBatchRequest", text)
    if bad := [name for name in names if not _ENTRY_ID.fullmatch(name)]:
        text = f"A batch entry id can only have letters, digits, - and _, at most 80: {bad[0][:100]!r} has not."
        raise SqsError("InvalidBatchEntryId", text)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SqsError("BatchEntryIdsNotDistinct", f"Id {twice} repeated.")


def _each(entries: Sequence[E], read: Callable[[E], T]) -> tuple[list[tuple[E, T]], list[Result]]:
    """Returns the entries of a batch with what was read of each, and those that cannot be read."""
    found, failed = [], []
    for entry in entries:
        try:
            found.append((entry, read(entry)))
        except SqsError as error:
            failed.append(_failure(entry.id, error))
    return found, failed


def _batch_result(done: Sequence[Result], failed: Sequence[Result]) -> Result:
    """Returns what became of a batch. Programs ask whether there is a list of failures at all."""
    found = {"Successful": done, "Failed": failed}
    return {name: entries for name, entries in found.items() if entries}


def _failure(name: str, error: SqsError) -> Result:
    return {"Id": name, "SenderFault": error.is_senders, "Code": error.query_name, "Message": str(error)}
