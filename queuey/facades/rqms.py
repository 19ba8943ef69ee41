"""The facade of RQMS: queues of JSON values with ids; a fetch locks its items for a time."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec

from queuey.api.claims import MAX_CLAIM, MAX_CLAIMS
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided
from queuey.claims.rules.receipts import InvalidReceipt, ReceiptOutcome, ReceiptStatus, format_receipt, parse_receipt
from queuey.facades.facade import OpenFacade, Resource, Setup
from queuey.facades.settings import MAX_FACADE_BODY
from queuey.messages.posts import Draft
from queuey.messages.range_reads import MAX_SHORT_BYTES
from queuey.model.errors import Conflict, InvalidRequest, NotAllowed, QueueNotFound, TooManyWaiters
from queuey.model.messages import MAX_NAME_LENGTH, MAX_TTL, Message, Meta, Queue, QueueSpec
from queuey.runtime.waiters import Waiter
from queuey.web import validators
from queuey.web.endpoint import Match, View
from queuey.web.json_values import check_value
from queuey.web.requests import Request, parse_form, read_body
from queuey.web.responses import Header, Response, encode, json_response
from queuey.web.validators import JSON_ERRORS, Errors

FETCH_TIMEOUT = 0.25
"""Timeout of a fetch while no item is free, in seconds, as in the original program. Its manual says about two."""
DEFAULT_COUNT, DEFAULT_LOCK_SECONDS = 1, 10.0
"""Default number of items of a fetch, and default time of a lock, in seconds."""
MIN_LOCK = 1.0
"""Min time of a lock, in seconds: shorter ones would often expire before the answer arrives."""
ID_HEADER = "rqms-id"
"""Header of a message that has the item's id. The id of an item without it is that of its message."""
ICON = "favicon.ico"
"""A file that browsers request on their own; the original never serves a queue of this name."""
HTML: Header = ("Content-Type", "text/html; charset=utf-8")


_decode_ticket = msgspec.json.Decoder(str | tuple[str, str]).decode
"""Decodes a ticket: a list of id and revision. Some clients send it encoded once more, as a JSON string."""


class TicketSpent(Conflict):
    """The item was changed or finished, or was fetched again."""


class _FetchedTask(msgspec.Struct):
    """An item in the answer to a fetch."""

    ticket: str
    value: object


class _FetchedTasks(msgspec.Struct):
    items: list[_FetchedTask]


class RqmsFacade(OpenFacade):
    """The calls of RQMS.

    Errors get 503 for overload, the usual status for conflicts, missing rights and defects, and 400 for all others,
    with a JSON body. If too many requests wait, a fetch gets an empty list with status 200.
    """

    spec = QueueSpec(partitions=1, ttl=MAX_TTL, on_ack="delete")

    def __init__(self, setup: Setup, prefix: str) -> None:
        super().__init__(setup, prefix)
        self._names = self._service.names
        self._claims = self._service.claims

    def resources(self) -> list[Resource]:
        return [
            Resource(
                "rqms.queue",
                "/{queue:[^/]+}{rest:(?:/.*)?}",
                {
                    "GET": View(self.fetch, reads_query=True, ends_with_client=True),
                    "POST": self.add,
                    "PUT": self.set,
                    "DELETE": self.finish,
                },
            )
        ]

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
        # As the original: 503 for overload, 500 for a defect, 400 for most other errors, all with a JSON body. One of
        # too many waiting polls gets no items.
        if isinstance(error, TooManyWaiters):
            return json_response({"items": []})
        if status in {429, 500, 503}:
            headers: tuple[Header, ...] = (("Retry-After", "1"),)
            status = 500 if status == 500 else 503  # noqa: PLR2004 - a defect of ours
        else:
            headers, status = (), status if isinstance(error, Conflict | NotAllowed) else 400
        response = json_response({"error": True, "message": text}, status)
        response.headers += headers
        return response

    def make_bad_name_error(self, reason: str) -> InvalidRequest:
        return InvalidRequest({"database": reason})

    # Adding

    async def add(self, request: Request, match: Match) -> Response:
        """Stores an item under the id in the query. Refuses an id that has another value. Creates a missing queue."""
        self.queue_match(match)
        query = parse_form(request.query, "query")
        name = _check_id(query.get("id", ""))
        draft = await request.parse_body(partial(_read_draft, request, name))
        create = partial(self._names.create, name=name, draft=draft)
        await self.apply(request, match, "send", create)
        return Response(201, b"It shall be done.", HTML)

    async def set(self, request: Request, match: Match) -> Response:
        """Stores an item under the id in the path, replacing the one with this id even if that is locked.

        Creates a missing queue. Needs the right ``overwrite``.
        """
        self.queue_match(match)
        name = _check_id(match["rest"].split("/", 2)[1] if match["rest"] else "")
        draft = await request.parse_body(partial(_read_draft, request, name))
        replace = partial(self._names.replace, name=name, draft=draft)
        await self.apply(request, match, "overwrite", replace)
        return Response(201, b"Well spoken.", HTML)

    # Fetching

    async def fetch(self, request: Request, match: Match) -> Response:
        """Locks items, waiting up to :data:`FETCH_TIMEOUT` for the first; answers with an empty list if none is free.

        A queue that does not exist counts as empty. A browser's request for its icon gets 404.
        """
        if match["queue"] == ICON:
            return Response(404, b"")
        terms = _read_terms(request)

        async def attempt(waiter: Waiter | None) -> list[_FetchedTask]:
            access = await self._authorization.admit(request, self.queue_match(match), "work")
            await request.share.reserve(MAX_SHORT_BYTES)
            return await access.apply(partial(fetch, waiter=waiter))

        async def fetch(queue: Queue, waiter: Waiter | None) -> list[_FetchedTask]:
            return _show_items(queue, await self._claims.claim(queue, **terms, waiter=waiter))

        try:
            items = await request.until_found(FETCH_TIMEOUT, attempt, ClaimUndecided)
        except (QueueNotFound, ClaimUndecided):
            items = []
        return json_response(_FetchedTasks(items))

    # Finishing

    async def finish(self, request: Request, match: Match) -> Response:
        """Finishes the item of a ticket. Any ticket that does not hold a lock in this queue counts as spent.

        Raises:
            InvalidRequest: The body is not a ticket.
            TicketSpent: The queue does not exist, or the ticket is of another queue, or spent.
        """
        revision = _read_revision(read_body(request, MAX_FACADE_BODY))

        async def finish(queue: Queue) -> Response:
            try:
                receipt = parse_receipt(revision, queue)
            except InvalidReceipt as error:
                raise InvalidRequest({"ticket": f"Its revision {error}"}) from error
            return _answer_finished(await self._claims.acknowledge(queue, [receipt]))

        try:
            access = await self._authorization.admit(request, self.queue_match(match), "work")
            return await access.apply(finish)
        except (QueueNotFound, InvalidRequest):
            raise TicketSpent("The ticket belongs to another queue, or to one that was deleted since.") from None


def _check_id(text: str) -> str:
    if not text:
        raise InvalidRequest({"id": validators.REQUIRED})
    if len(text) > MAX_NAME_LENGTH:
        raise InvalidRequest({"id": f"Longer than maximum length {MAX_NAME_LENGTH}"})
    if "/" in text or text in {".", ".."}:
        raise InvalidRequest({"id": f'"{text}" cannot be a part of a path'})
    if validators.CONTROL_CHARACTER.search(text) is not None:
        raise InvalidRequest({"id": f"{text!r} has a control character, so it cannot be stored as a header"})
    return text


def _read_draft(request: Request, name: str) -> Draft:
    """Reads the item in a body, and removes white space between its parts. Its id becomes a header."""
    body = read_body(request, MAX_FACADE_BODY)
    try:
        check_value(body)
    except validators.BadField as error:
        raise InvalidRequest({"value": str(error)}) from None
    meta = Meta("application/json", ((ID_HEADER, name),), json=True)
    # Values that differ only in white space are the same.
    return Draft(msgspec.json.format(body, indent=-1).decode(), meta=meta)


def _read_terms(request: Request) -> dict[str, Any]:
    query = parse_form(request.query, "query")
    errors = Errors()
    count = errors.parse_field("count", _read_number, query.get("count"), 1)
    time = errors.parse_field("time", _read_number, query.get("time"), 0)
    errors.check()
    return {
        "limit": int(min(count or DEFAULT_COUNT, MAX_CLAIMS)),
        "ttl": min(max(DEFAULT_LOCK_SECONDS if time is None else time, MIN_LOCK), MAX_CLAIM),
        "max_bytes": MAX_SHORT_BYTES,
    }


def _read_number(text: object, minimum: float) -> float:
    try:
        number = float(str(text))
    except ValueError:
        number = math.nan
    if not number >= minimum:  # also refuses NaN
        raise validators.BadField(f'"{validators.show(text)}" is not a number from {minimum:g}')
    return number


def _show_items(queue: Queue, claimed: Sequence[ClaimDelivery]) -> list[_FetchedTask]:
    items = []
    for delivery in claimed:
        name = _id_of(delivery.message)
        ticket = encode((name, format_receipt(delivery.receipt, queue.qid))).decode()
        items.append((name.encode(), _FetchedTask(ticket, _value_of(delivery.message))))
    items.sort(key=itemgetter(0))
    return [item for _, item in items]


def _id_of(message: Message) -> str:
    headers = () if message.meta is None else message.meta.headers
    return next((value for name, value in headers if name == ID_HEADER), None) or message.id


def _value_of(message: Message) -> object:
    body = message.body
    if isinstance(body, bytes):
        return b64encode(body).decode()
    return msgspec.Raw(body.encode()) if message.meta is not None and message.meta.json else body


def _read_revision(body: bytes) -> str:
    ticket: str | tuple[str, str]
    try:
        ticket = _decode_ticket(body)
        if isinstance(ticket, str):
            ticket = _decode_ticket(ticket)
    except msgspec.ValidationError:
        ticket = ""
    except JSON_ERRORS:
        raise InvalidRequest({"ticket": "Is not JSON: send the ticket of the item unchanged"}) from None
    if isinstance(ticket, str):
        raise InvalidRequest({"ticket": "Is not the ticket of an item: a list of an id and a revision"})
    return ticket[1]


def _answer_finished(settlements: Sequence[ReceiptOutcome]) -> Response:
    if any(settlement.status is not ReceiptStatus.ACCEPTED for settlement in settlements):
        raise TicketSpent("The item was changed, finished, or fetched again by somebody else.")
    return Response(200, b"Well done, sir!", HTML)
