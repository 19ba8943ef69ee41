"""Acts on messages: send, delete, release, and send dead letters back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.claims.rules.operator_acts import JobStanding
from queuey.claims.rules.receipts import ClaimReceipt, ReceiptStatus
from queuey.console.acts.act import Act, ActPlan, ActResult, Field
from queuey.console.sessions import PageRequest
from queuey.messages.message_views import format_place, parse_batch, parse_place
from queuey.model import ids
from queuey.model.deadletters import Redriven
from queuey.model.errors import InvalidRequest, NotAllowed, NotFound, TooManyRequests
from queuey.model.messages import MAX_TTL, Location
from queuey.operations.redrive import DeadLetterPage, RedriveFilter

MAX_BODY = 32 * 1024
MAX_CHARACTER_BYTES = 12
"""Max bytes of a character in a form: four, each percent-encoded."""
REDRIVE_TIMEOUT, PLAN_TIMEOUT = 5.0, 0.5
"""Seconds for which one request sends dead letters back, and for which a plan counts them."""
MAX_PREVIEWED = 2000
"""Max messages after which the plan reads no further page."""
MAX_SEARCHES = 2
"""Max concurrent searches for dead letters in a worker."""


class SendMessageAct(Act):
    """Posts one message, as the API does."""

    name, title, needs = "send", "Send a message", ("send",)
    place = "acts"
    logged_fields = ("form", "message_key", "partition", "delay", "ttl")
    fields = (*logged_fields, "body", "headers")
    longest = MAX_CHARACTER_BYTES * MAX_BODY + Act.longest
    about = "Workers and readers get it like any other message."
    button = "Send it"

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        return (
            Field("body", "Body", kind="text"),
            Field("form", "The body is", "text", "choice", choices=(("text", "text"), ("json", "a JSON value"))),
            Field("message_key", "Key", hint="Messages of one key go to one partition; ordered queues need one."),
            Field("partition", "Partition", hint="Blank: the service chooses."),
            Field("delay", "Delay", hint=f"Seconds, up to {MAX_TTL}."),
            Field("ttl", "Time to live", hint="Seconds; blank: that of the queue."),
            Field("headers", "Headers", kind="text", hint="One on a line: name: value"),
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        access = await page_request.enter("send")
        service = page_request.service
        batch = msgspec.json.encode({"messages": [read_item(page_request)]})
        (draft,) = parse_batch(batch, service.limits, access.queue, page_request.request)
        posted = await access.apply(partial(service.messages.post, drafts=[draft]))
        place = format_place(*posted.locations[0])
        return ActResult(text=f"Stored message {place}.", details={"message": place})


def read_item(page_request: PageRequest) -> dict[str, Any]:
    """Returns a message as the API takes it in JSON, from the fields of a form. Blank fields are left out.

    A header line without a colon has a blank value; of lines with the same name, the last one counts.

    Raises:
        InvalidRequest: The body is empty, too long, or not the JSON value that the form says.
    """
    # Browsers send each line end as two characters.
    body = page_request.given.get("body", "").replace("\r\n", "\n")
    if not 0 < len(body) <= MAX_BODY:
        raise InvalidRequest({"body": f"Not 1 to {MAX_BODY} characters"})
    item: dict[str, Any] = {"body": body}
    if page_request.get("form") == "json":
        try:
            msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest({"body": f"Not a JSON value: {error}"}) from None
        item = {"body": msgspec.Raw(body.encode())}
    item |= {name: text for name in ("message_key", "partition", "delay", "ttl") if (text := page_request.get(name))}
    lines = [line for line in page_request.given.get("headers", "").splitlines() if line.strip()]
    if lines:
        pairs = (line.partition(":") for line in lines)
        item["headers"] = {name.strip(): value.strip() for name, _, value in pairs}
    return item


class MessageAct(Act):
    """An act on one message; ``about`` has placeholders for its id and partition."""

    fields: tuple[str, ...] = ("message",)
    logged_fields = fields

    async def effects(self, page_request: PageRequest) -> str:
        number, position = _parse_place(page_request)
        return self.about.format(id=ids.to_hex(position), partition=number)


class DeleteMessageAct(MessageAct):
    """Deletes a message; succeeds if it does not exist, and says so."""

    name, title, needs = "delete", "Delete a message", ("delete",)
    about = (
        "Message {id} of partition {partition} is deleted: no reader or worker gets it from then on. A worker that "
        "already has it is not stopped.\n"
        "This cannot be undone."
    )
    button = "Delete it"
    destroys = True

    async def do(self, page_request: PageRequest) -> ActResult:
        place = _parse_place(page_request)
        count = await page_request.service.messages.delete(await page_request.enter("delete"), [place])
        return ActResult(text="Deleted the message." if count else "There was no such message, so nothing was deleted.")


class ReleaseJob(MessageAct):
    """Ends the claim of a job: another worker gets it, or it becomes a dead letter. Without a claim nothing happens."""

    name, title, needs = "release", "Release a job", ("admin",)
    fields = logged_fields = ("message", "then")
    about = (
        "The claim of message {id} of partition {partition} ends. Its worker is not stopped, and gets an error when it "
        "acknowledges or renews: by then, two workers may have handled the message."
    )
    button = "Release it"

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        choices = (("again", "another worker gets it now"), ("dead", "it becomes a dead letter"))
        return (Field("then", "Then", "again", "choice", choices=choices),)

    async def do(self, page_request: PageRequest) -> ActResult:
        number, position = _parse_place(page_request)
        retry = page_request.get("then") != "dead"
        claims = page_request.service.claims
        receipt = ClaimReceipt(number, *position)
        access = await page_request.enter("admin")
        (settled,) = await access.apply(partial(claims.release, receipts=[receipt], retry=retry))
        if settled.status is not ReceiptStatus.ACCEPTED:
            return ActResult(text="No worker has this message, or it is already done, so nothing was released.")
        return ActResult(text="Released: another worker gets it." if retry else "Gave it up: it becomes a dead letter.")


class CancelJob(MessageAct):
    name, title, needs = "cancel-job", "Cancel a job", ("claim",)
    about = (
        "Message {id} of partition {partition} is not delivered again. A worker that has it is asked to stop when it "
        "renews its claim. It may still finish the job; if it fails, the job is not retried.\n"
        "This cannot be undone."
    )
    button = "Cancel it"
    destroys = True

    async def do(self, page_request: PageRequest) -> ActResult:
        texts: dict[JobStanding, str] = {
            "removed": "Removed the job: no worker gets it.",
            "claimed": "Asked its worker to stop. The job is not retried.",
            "done": "The job was already done or removed, so nothing was changed.",
        }
        return ActResult(text=texts[await _act_on_job(page_request, page_request.service.claims.jobs.cancel)])


class RetryJob(MessageAct):
    name, title, needs = "retry-job", "Retry a job now", ("claim",)
    about = (
        "If message {id} of partition {partition} is delayed, or waits for a retry after a failure or release, the "
        "next claim can get it. Nothing else changes."
    )
    button = "Retry it now"

    async def do(self, page_request: PageRequest) -> ActResult:
        texts: dict[JobStanding, str] = {
            "waiting": "The next claim can get the job.",
            "claimed": "A worker has the job, so nothing was changed.",
            "done": "The job is done or removed, so nothing was changed.",
        }
        standing = await _act_on_job(page_request, page_request.service.claims.jobs.make_available_now)
        return ActResult(text=texts[standing])


async def _act_on_job(page_request: PageRequest, act: Callable[..., Coroutine[Any, Any, JobStanding]]) -> JobStanding:
    partition, position = _parse_place(page_request)
    access = await page_request.enter("claim")
    if access.queue.principals:  # As in the API: a caller who may only read may not end jobs.
        access = await page_request.enter("work")
    return await access.apply(partial(act, partition=partition, position=position))


class Redrive(Act):
    """Sends matching dead letters back to their queues, for :data:`REDRIVE_TIMEOUT` at a time.

    If the time is over first, the result's details have a cursor, from which the next act goes on. An error ends it,
    too. Letters stay if the caller may not send to their queue, and those sent back before are only removed. The plan
    ends after :data:`MAX_PREVIEWED` messages or :data:`PLAN_TIMEOUT`, and has no button if nothing can match.
    """

    name, title, needs = "redrive", "Send dead letters back", ("read", "delete")
    fields = logged_fields = ("queue", "error", "shape", "reason", "message", "cursor")

    def __init__(self) -> None:
        self._searches = 0

    async def plan(self, page_request: PageRequest) -> ActPlan:
        selection, counts, scanned = _read_filter(page_request), Counter[str](), 0
        access, cursor, more = await page_request.enter("read"), page_request.get("cursor"), True
        until = time.monotonic() + PLAN_TIMEOUT
        with self._limit_searches():
            while more and scanned < MAX_PREVIEWED and time.monotonic() < until:
                page = await _find_page(page_request, access, selection, cursor)
                counts.update(letter.queue for letter in page.letters)
                scanned, cursor, more = scanned + page.read_count, page.cursor, bool(page.cursor)
        number = sum(counts.values())
        beyond = " Matching dead letters behind these messages are included, too." if more else ""
        return ActPlan(
            about=(
                f"Matching dead letters among {scanned} messages in {page_request.name}: {number}.{beyond}\n"
                "Each is stored at the end of its former partition, with a new id, and then removed here."
            ),
            head=("Queue", "Dead letters that came from there", "They"),
            rows=[(name, count, await _describe_outcome(page_request, name)) for name, count in sorted(counts.items())],
            button="Send them back" if number or more else "",
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        selection, cursor = _read_filter(page_request), page_request.get("cursor")
        reading, removing = await page_request.enter("read"), await page_request.enter("delete")
        done, until = Redriven(), time.monotonic() + REDRIVE_TIMEOUT
        with self._limit_searches():
            while done.error is None:
                page = await _find_page(page_request, reading, selection, cursor)
                done += await page_request.service.redriving.send_back(
                    removing, page.letters, partial(page_request.enter, "send")
                )
                cursor = page.cursor
                if not cursor or time.monotonic() > until:
                    break
        parts = [f"Sent back {count} to {name}." for name, count in sorted(done.sent.items())] or ["Sent back none."]
        parts += [f"{done.already_sent} had been sent back before, and were removed now."] if done.already_sent else []
        parts += [f"{count} stay: {reason.rstrip('.')}." for reason, count in Counter(done.left).most_common(5)]
        parts += [f"Then it failed: {done.error}"] if done.error else ["There may be more: go on."] if cursor else []
        details = {"go_on": cursor} if cursor else {}
        return ActResult(text=" ".join(parts), partly=done.error is not None, details=details)

    @contextmanager
    def _limit_searches(self) -> Iterator[None]:
        """Raises ``TooManyRequests`` if :data:`MAX_SEARCHES` searches are running; does not wait."""
        if self._searches == MAX_SEARCHES:
            raise TooManyRequests(f"{MAX_SEARCHES} other searches for dead letters are running. Try again in a moment.")
        self._searches += 1
        try:
            yield
        finally:
            self._searches -= 1


async def _describe_outcome(page_request: PageRequest, name: str) -> str:
    """Returns whether dead letters go back to their queue, or why they stay."""
    try:
        await page_request.enter("send", name)
    except (NotAllowed, NotFound) as refusal:
        return f"stay: {refusal}"
    return "go back"


async def _find_page(
    page_request: PageRequest, access: QueueAccess, selection: RedriveFilter, cursor: str
) -> DeadLetterPage:
    try:
        return await page_request.service.redriving.find(access, selection, cursor)
    except ValueError as error:
        raise InvalidRequest({"cursor": str(error)}) from None


def _read_filter(page_request: PageRequest) -> RedriveFilter:
    """Reads which dead letters a form selects: one message, those with a reason, or all.

    Texts of the reason come from messages, so surrounding white space counts, and they may be blank.
    """
    field = page_request.given.get
    place = _parse_place(page_request) if page_request.get("message") else None
    return RedriveFilter(
        reason=(field("queue", ""), field("error", ""), field("shape", "")) if page_request.get("reason") else None,
        place=place,
    )


def _parse_place(page_request: PageRequest) -> Location:
    number, position = parse_place(page_request.get("message"))
    if number is None:
        raise InvalidRequest({"message": "Not <partition>:<id>"})
    return number, position
