"""SQS actions on messages, which run on the event loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from queuey.access.authorization import Authorization
from queuey.app.service import Service
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided
from queuey.claims.rules.receipts import (
    ClaimReceipt,
    InvalidReceipt,
    ReceiptOfAnotherQueue,
    ReceiptOutcome,
    ReceiptStatus,
    parse_receipt,
)
from queuey.facades.sqs import requests
from queuey.facades.sqs.attributes import (
    MAX_DELAY,
    MAX_MESSAGE,
    MAX_VISIBILITY,
    MAX_WAIT,
    StoredAttributes,
    is_fifo,
    stored_attributes,
)
from queuey.facades.sqs.errors import UNAVAILABLE, SqsError, check_range, invalid
from queuey.facades.sqs.messages import (
    FifoDraft,
    check_fifo_batch,
    check_id,
    make_draft,
    make_fifo_draft,
    render_received,
    sent_result,
    size_of,
)
from queuey.facades.sqs.requests import Result, SignedRequest
from queuey.messages.posts import Draft, Placed
from queuey.messages.range_reads import MAX_SHORT_BYTES
from queuey.model.errors import KeyInUse, StoreUnavailable
from queuey.model.messages import Queue
from queuey.runtime.waiters import Waiter

T = TypeVar("T")
E = TypeVar("E", bound="requests.BatchEntry | requests.SentEntry")
MIN_CLAIM = 5.0
"""Min time of a claim, in seconds, used for a visibility timeout of 0. It is released when its messages are there."""
_HANDLE = re.compile(r"(.{1,100})-([0-9a-f]{8})", re.ASCII)
"""A receipt and the time of the receive."""
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class MessageActions:
    """Actions on messages."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._messages = service.messages
        self._claims = service.claims
        self._authorization = authorization

    async def _call_with_queue(
        self,
        signed: SignedRequest,
        url: str,
        action: Any,  # noqa: ANN401 - passed on
        call: Callable[[Queue], Awaitable[T]],
    ) -> T:
        where = signed.match_of_url(url)
        access = await self._authorization.admit(signed.request, where, action)
        return await access.apply(call)

    # Sending

    async def send(self, signed: SignedRequest) -> Result:
        """Stores a message, unless a FIFO queue had its deduplication id in the last five minutes."""
        parameters = signed.read(requests.SendMessage)

        async def send(queue: Queue) -> Result:
            if is_fifo(queue):
                draft, key = make_fifo_draft(parameters, queue, _read_trace(signed))
            else:
                draft, key = _make_draft(parameters, stored_attributes(queue), _read_trace(signed)), None
            posted = await self._messages.post(queue, [draft], key=key)
            return sent_result(parameters, posted.locations[0], fifo=is_fifo(queue))

        return await self._call_with_queue(signed, parameters.queue_url, "send", send)

    async def send_batch(self, signed: SignedRequest) -> Result:
        """Stores the valid messages of a batch; in a standard queue, all of these or none.

        The answer has the others as failures. Refuses a whole batch that is empty, too long, above
        :data:`MAX_MESSAGE` bytes, or has a bad or repeated id.
        """
        parameters = signed.read(requests.SendMessageBatch)
        _require_valid_batch(parameters.entries)
        size = sum(size_of(entry) for entry in parameters.entries)
        if size > MAX_MESSAGE:
            text = f"Batch requests cannot be longer than {MAX_MESSAGE} bytes. You have sent {size} bytes."
            raise SqsError("BatchRequestTooLong", text)

        async def send(queue: Queue) -> Result:
            if is_fifo(queue):
                return await self._send_batch_in_order(queue, parameters.entries, _read_trace(signed))
            kept, trace = stored_attributes(queue), _read_trace(signed)
            drafts, failed = _parse_entries(parameters.entries, lambda entry: _make_draft(entry, kept, trace))
            posted = await self._messages.post(queue, [draft for _, draft in drafts])
            done = [
                {"Id": entry.id, **sent_result(entry, location, fifo=False)}
                for (entry, _), location in zip(drafts, posted.locations, strict=True)
            ]
            return _batch_result(done, failed)

        return await self._call_with_queue(signed, parameters.queue_url, "send", send)

    async def _send_batch_in_order(self, queue: Queue, entries: Sequence[requests.SentEntry], trace: str) -> Result:
        """Stores messages in a FIFO queue: each group in order, and nothing of a group after a failed post.

        Groups are stored at the same time. Refuses all if one message lacks a group or a deduplication id.
        Waits once, at the end, until all clocks have passed the messages. Ten waits would take longer than a request
        may.
        """
        check_fifo_batch(entries, queue)
        drafts, failed = _parse_entries(entries, lambda entry: make_fifo_draft(entry, queue, trace))
        groups: dict[str | None, list[tuple[requests.SentEntry, FifoDraft]]] = {}
        for entry, draft in drafts:
            groups.setdefault(entry.message_group_id, []).append((entry, draft))
        done: dict[str, Result] = {}
        placed: list[Placed] = []

        async def send(group: Sequence[tuple[requests.SentEntry, FifoDraft]]) -> list[Result]:
            for index, (entry, draft) in enumerate(group):
                try:
                    posted = await self._messages.post(queue, [draft.draft], key=draft.key, more=True)
                except (StoreUnavailable, KeyInUse) as error:
                    unavailable = SqsError(UNAVAILABLE, str(error), 503)
                    return [_make_failure(remaining.id, unavailable) for remaining, _ in group[index:]]
                placed.append((draft.draft.delay, posted.locations[0]))
                done[entry.id] = {"Id": entry.id, **sent_result(entry, posted.locations[0], fifo=True)}
            return []

        for failures in await asyncio.gather(*map(send, groups.values())):
            failed += failures
        await self._messages.settle_order(queue, placed)
        return _batch_result([done[entry.id] for entry in entries if entry.id in done], failed)

    # Receiving

    async def receive(self, signed: SignedRequest) -> Result:
        """Claims messages, and waits for them as long as the request or the queue says.

        A visibility timeout of 0 releases them at once; if the claim stays undecided, the answer is empty. The caller's
        rights are checked again after each wait.
        """
        parameters = signed.read(requests.ReceiveMessage)
        limit = check_range("MaxNumberOfMessages", parameters.max_number_of_messages, 1, requests.MAX_ENTRIES)
        where = signed.match_of_url(parameters.queue_url)
        access = await self._authorization.admit(signed.request, where, "work")
        wait = check_range(
            "WaitTimeSeconds", parameters.wait_time_seconds, 0, MAX_WAIT, stored_attributes(access.queue).wait
        )

        async def attempt(waiter: Waiter | None) -> Result:
            current = access if waiter is None else await self._authorization.admit(signed.request, where, "work")
            await signed.request.share.reserve(MAX_SHORT_BYTES)
            return await current.apply(partial(receive, waiter=waiter))

        async def receive(queue: Queue, waiter: Waiter | None) -> Result:
            visibility = stored_attributes(queue).visibility
            seconds = check_range("VisibilityTimeout", parameters.visibility_timeout, 0, MAX_VISIBILITY, visibility)
            claimed = await self._claims.claim(
                queue, limit=limit, ttl=seconds or MIN_CLAIM, waiter=waiter, max_bytes=MAX_SHORT_BYTES, gather=True
            )
            if claimed and not seconds:
                await self._claims.release(queue, [delivery.receipt for delivery in claimed])
            return _show_received(claimed, queue, signed.region, parameters)

        try:
            return await signed.request.until_found(wait, attempt, ClaimUndecided)
        except ClaimUndecided:  # Messages may be available; clients of SQS receive again anyway.
            return {}

    # Receipts

    async def delete(self, signed: SignedRequest) -> Result:
        """Acknowledges a message. Succeeds if it is gone, and in a standard queue also if it was received again.

        Raises:
            SqsError: The handle is malformed or of another queue; in a FIFO queue also if it was received again.
        """
        parameters = signed.read(requests.DeleteMessage)

        async def delete(queue: Queue) -> Result:
            [settled] = await self._claims.acknowledge(queue, [_read_handle(parameters.receipt_handle, queue)])
            if is_fifo(queue) and settled.status is ReceiptStatus.SUPERSEDED:
                raise _make_expired_error()
            return {}

        return await self._call_with_queue(signed, parameters.queue_url, "work", delete)

    async def delete_batch(self, signed: SignedRequest) -> Result:
        parameters = signed.read(requests.DeleteMessageBatch)
        _require_valid_batch(parameters.entries)

        async def delete(queue: Queue) -> Result:
            parsed, failed = _parse_entries(parameters.entries, lambda entry: _read_handle(entry.receipt_handle, queue))
            settled = await self._claims.acknowledge(queue, [receipt for _, receipt in parsed])
            expired = {
                entry.id
                for (entry, _), settlement in zip(parsed, settled, strict=True)
                if is_fifo(queue) and settlement.status is ReceiptStatus.SUPERSEDED
            }
            failed += [_make_failure(name, _make_expired_error()) for name in expired]
            return _batch_result([{"Id": entry.id} for entry, _ in parsed if entry.id not in expired], failed)

        return await self._call_with_queue(signed, parameters.queue_url, "work", delete)

    async def change_visibility(self, signed: SignedRequest) -> Result:
        """Hides the message for the given seconds from now, also if that ends its claim sooner.

        It stays hidden for at most ``MAX_VISIBILITY`` seconds in all since it was received.

        The handle still deletes it until it is received again.

        Raises:
            SqsError: The message is gone or was received again, or would stay hidden for too long, or the handle is
                malformed or of another queue.
        """
        parameters = signed.read(requests.ChangeVisibility)
        seconds = check_range("VisibilityTimeout", parameters.visibility_timeout, 0, MAX_VISIBILITY)

        async def change(queue: Queue) -> Result:
            receipt = _read_handle(parameters.receipt_handle, queue, seconds)
            [settled] = await self._claims.release(queue, [receipt], float(seconds))
            if settled.status is not ReceiptStatus.ACCEPTED:
                raise _make_refusal(settled, parameters.receipt_handle)
            return {}

        return await self._call_with_queue(signed, parameters.queue_url, "work", change)

    async def change_visibility_batch(self, signed: SignedRequest) -> Result:
        """Releases the claims of a batch, each with its own delay, or else the queue's visibility timeout.

        Each entry succeeds or fails on its own, as :meth:`change_visibility` does.
        """
        parameters = signed.read(requests.ChangeVisibilityBatch)
        _require_valid_batch(parameters.entries)

        async def change(queue: Queue) -> Result:
            kept = stored_attributes(queue)

            def parse(entry: requests.ChangedEntry) -> tuple[int, ClaimReceipt]:
                seconds = check_range("VisibilityTimeout", entry.visibility_timeout, 0, MAX_VISIBILITY, kept.visibility)
                return seconds, _read_handle(entry.receipt_handle, queue, seconds)

            parsed, failed = _parse_entries(parameters.entries, parse)
            settled: dict[str, ReceiptOutcome] = {}
            for seconds in dict.fromkeys(seconds for _, (seconds, _) in parsed):
                receipts = [(entry.id, receipt) for entry, (timeout, receipt) in parsed if timeout == seconds]
                done = await self._claims.release(queue, [receipt for _, receipt in receipts], float(seconds))
                settled |= {name: settlement for (name, _), settlement in zip(receipts, done, strict=True)}
            refused = {name: result for name, result in settled.items() if result.status is not ReceiptStatus.ACCEPTED}
            handles = {entry.id: entry.receipt_handle for entry, _ in parsed}
            failed += [_make_failure(name, _make_refusal(result, handles[name])) for name, result in refused.items()]
            return _batch_result([{"Id": entry.id} for entry, _ in parsed if entry.id not in refused], failed)

        return await self._call_with_queue(signed, parameters.queue_url, "work", change)


def _read_trace(signed: SignedRequest) -> str:
    return signed.request.headers.get("x-amzn-trace-id", "")


def _make_draft(entry: requests.MessageParameters, kept: StoredAttributes, trace: str) -> Draft:
    if entry.message_deduplication_id is not None:
        raise invalid("MessageDeduplicationId", entry.message_deduplication_id, "Only FIFO queues have these.")
    if entry.message_group_id is not None:
        check_id("MessageGroupId", entry.message_group_id)
    delay = check_range("DelaySeconds", entry.delay_seconds, 0, MAX_DELAY, kept.delay)
    return make_draft(entry, delay, time.time(), kept.size, trace, fifo=False)


def _show_received(
    claimed: Sequence[ClaimDelivery], queue: Queue, region: str, terms: requests.ReceiveMessage
) -> Result:
    if not claimed:
        return {}
    system = frozenset((*terms.attribute_names, *terms.message_system_attribute_names))
    show = partial(
        render_received, queue=queue, region=region, now=time.time(), system=system, names=terms.message_attribute_names
    )
    return {"Messages": [show(delivery) for delivery in claimed]}


def _read_handle(handle: str, queue: Queue, seconds: int = 0) -> ClaimReceipt:
    """Parses a receipt handle; ``seconds`` is for how long its message is to be hidden from now on.

    Raises:
        SqsError: The text is not a receipt handle, or is of another queue or from before a purge, or the message would
            be hidden for more than ``MAX_VISIBILITY`` seconds since it was received.
    """
    text, received = match.groups() if (match := _HANDLE.fullmatch(handle)) else ("", "0")
    try:
        receipt = parse_receipt(text, queue)
    except ReceiptOfAnotherQueue:
        text = "The receipt handle belongs to another queue, or was issued before this one was purged."
        raise SqsError("ReceiptHandleIsInvalid", text) from None
    except InvalidReceipt:
        text = f'The input receipt handle "{handle[:100]}" is not a valid receipt handle.'
        raise SqsError("ReceiptHandleIsInvalid", text) from None
    if seconds and time.time() - int(received, 16) + seconds > MAX_VISIBILITY + 1:  # The handle has whole seconds.
        text = f"Total VisibilityTimeout for the message is beyond the limit [{MAX_VISIBILITY} seconds]"
        raise invalid("VisibilityTimeout", seconds, text)
    return receipt


def _make_refusal(settled: ReceiptOutcome, handle: str) -> SqsError:
    if settled.status is ReceiptStatus.SUPERSEDED:
        return SqsError("MessageNotInflight", "The message was received again since, under another receipt handle.")
    return invalid("ReceiptHandle", handle, "Message does not exist or is not available for visibility timeout change.")


def _make_expired_error() -> SqsError:
    return invalid("ReceiptHandle", "", "The receipt handle has expired: the message was received again since.")


# Batches


def _require_valid_batch(entries: Sequence[E]) -> None:
    names = [entry.id for entry in entries]
    if not names:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(names) > requests.MAX_ENTRIES:
        text = f"Maximum number of entries per request are {requests.MAX_ENTRIES}. You have sent {len(names)}."
        raise SqsError("TooManyEntriesInBatchRequest", text)
    if bad := [name for name in names if not _ENTRY_ID.fullmatch(name)]:
        text = f"A batch entry id has 1 to 80 letters, digits, - and _: {bad[0][:100]!r} is not valid."
        raise SqsError("InvalidBatchEntryId", text)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SqsError("BatchEntryIdsNotDistinct", f"Id {twice} repeated.")


def _parse_entries(entries: Sequence[E], read: Callable[[E], T]) -> tuple[list[tuple[E, T]], list[Result]]:
    parsed, failed = [], []
    for entry in entries:
        try:
            parsed.append((entry, read(entry)))
        except SqsError as error:
            failed.append(_make_failure(entry.id, error))
    return parsed, failed


def _batch_result(done: Sequence[Result], failed: Sequence[Result]) -> Result:
    """Returns the result of a batch. Leaves out an empty list: clients test whether the key ``Failed`` exists."""
    result = {"Successful": done, "Failed": failed}
    return {name: entries for name, entries in result.items() if entries}


def _make_failure(name: str, error: SqsError) -> Result:
    return {"Id": name, "SenderFault": error.is_sender_fault, "Code": error.query_name, "Message": str(error)}
