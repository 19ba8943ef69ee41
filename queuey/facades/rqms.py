"""The facade of RQMS: queues of JSON values with ids, locked for a time by who fetches them."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec

from queuey.api.claims import MAX_CLAIM, MAX_CLAIMS
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement, parse_receipt
from queuey.errors import Conflict, InvalidRequest, NotAllowed, QueueNotFound, TooManyWaiters
from queuey.facades.facade import OpenFacade, Resource, Setup
from queuey.facades.settings import MAX_FACADE_BODY
from queuey.messages import LONGEST_NAME, MAX_TTL, Message, Meta, Queue, QueueSpec
from queuey.service import ClaimDelivery, Draft
from queuey.service.claims.requests import ClaimUndecided
from queuey.service.reading import SHORT_BYTES
from queuey.service.watching import Waiter
from queuey.web import validators
from queuey.web.endpoint import Match, View
from queuey.web.json_values import check_value
from queuey.web.requests import Request, parse_form, read_body
from queuey.web.responses import Header, Response, encode, json_response
from queuey.web.v1.claims import mark_of
from queuey.web.validators import JSON_ERRORS, Errors

FETCH_TIMEOUT = 0.25
"""Timeout of a fetch while no item is free, in seconds, as in the original's program. Its manual says about two."""
COUNT, TIME = 1, 10.0
"""Defaults of a fetch."""
MIN_LOCK = 1.0
"""Min time of a lock, in seconds: shorter ones would often expire before the answer arrives."""
ID = "rqms-id"
"""The header of a message that has its id."""
ICON = "favicon.ico"
"""Names that browsers request on their own; the original never serves a queue of this name."""
HTML: Header = ("Content-Type", "text/html; charset=utf-8")


_decode_ticket = msgspec.json.Decoder(str | tuple[str, str]).decode
"""A ticket is an id and a revision. Clients send it as it was given out, or as a JSON string once more."""


class TicketSpent(Conflict):
    """The item has changed, was fetched by somebody else since, or is done."""

    code = "TicketSpent"


class _Item(msgspec.Struct):
    """An item in the answer to a fetch."""

    ticket: str
    value: object


class _Items(msgspec.Struct):
    items: list[_Item]


class RqmsFacade(OpenFacade):
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
                    "GET": View(self.fetch, asks=True, reads=True),
                    "POST": self.add,
                    "PUT": self.set,
                    "DELETE": self.finish,
                },
            )
        ]

    def error_response(self, request: Request, error: Exception, status: int, text: str) -> Response:
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

    def refuse(self, reason: str) -> InvalidRequest:
        return InvalidRequest({"database": reason})

    # Adding

    async def add(self, request: Request, match: Match) -> Response:
        """Stores an item under an unused id."""
        self.where(match)
        given = parse_form(request.query, "query")
        name = _name(given.get("id", ""))
        draft = await request.read(partial(_draft, request, name))
        create = partial(self._names.create, name=name, draft=draft)
        await self.apply(request, match, "send", create)
        return Response(201, b"It shall be done.", HTML)

    async def set(self, request: Request, match: Match) -> Response:
        """Stores an item in the place of the one that has the name, also if that is locked."""
        self.where(match)
        name = _name(match["rest"].split("/", 2)[1] if match["rest"] else "")
        draft = await request.read(partial(_draft, request, name))
        replace = partial(self._names.replace, name=name, draft=draft)
        await self.apply(request, match, "overwrite", replace)
        return Response(201, b"Well spoken.", HTML)

    # Fetching

    async def fetch(self, request: Request, match: Match) -> Response:
        """Locks items; none if there is no such queue."""
        if match["queue"] == ICON:
            return Response(404, b"")
        asked = _asked(request)

        async def attempt(waiter: Waiter | None) -> list[_Item]:
            access = await self._authorization.admit(request, self.where(match), "work")
            await request.reserve(SHORT_BYTES)
            return await access.apply(partial(fetch, waiter=waiter))

        async def fetch(queue: Queue, waiter: Waiter | None) -> list[_Item]:
            return _fetched(queue, await self._claims.claim(queue, **asked, waiter=waiter))

        try:
            items = await request.until_found(FETCH_TIMEOUT, attempt, ClaimUndecided)
        except QueueNotFound:
            items = []
        return json_response(_Items(items))

    # Finishing

    async def finish(self, request: Request, match: Match) -> Response:
        revision = _revision(read_body(request, MAX_FACADE_BODY))

        async def finish(queue: Queue) -> Response:
            receipt = _receipt(revision, queue)
            if receipt is None:
                raise InvalidRequest({"ticket": "Is of another queue"})
            return _finished(await self._claims.acknowledge(queue, [receipt]))

        try:
            access = await self._authorization.admit(request, self.where(match), "work")
            return await access.apply(finish)
        except (QueueNotFound, InvalidRequest):
            raise TicketSpent("The ticket is of another queue, or of one that was deleted since.") from None


def _name(text: str) -> str:
    """Checks an id, or the name of an item.

    Raises:
        InvalidRequest: It is none.
    """
    if not text:
        raise InvalidRequest({"id": validators.REQUIRED})
    if len(text) > LONGEST_NAME:
        raise InvalidRequest({"id": f"Longer than maximum length {LONGEST_NAME}"})
    if "/" in text or text in {".", ".."}:
        raise InvalidRequest({"id": f'"{text}" cannot be a part of a path'})
    if validators.CONTROL.search(text) is not None:
        raise InvalidRequest({"id": f"{text!r} has a control character, and so cannot be a header of its message"})
    return text


def _draft(request: Request, name: str) -> Draft:
    """Reads an item.

    Raises:
        InvalidRequest: Its value is not JSON.
    """
    body = read_body(request, MAX_FACADE_BODY)
    try:
        check_value(body)
    except validators.BadField as error:
        raise InvalidRequest({"value": str(error)}) from None
    meta = Meta("application/json", ((ID, name),), json=True)
    # White space between the parts of a value says nothing, so it does not make it another one.
    return Draft(msgspec.json.format(body, indent=-1).decode(), meta=meta)


def _asked(request: Request) -> dict[str, Any]:
    """Reads what a fetch asks for, as the use case takes it. More than can be had is as much as can be had.

    Raises:
        InvalidRequest: One of the numbers is none.
    """
    given = parse_form(request.query, "query")
    errors = Errors()
    count = errors.take("count", _number, given.get("count"), 1)
    time = errors.take("time", _number, given.get("time"), 0)
    errors.check()
    return {
        "limit": int(min(count or COUNT, MAX_CLAIMS)),
        "ttl": min(max(TIME if time is None else time, MIN_LOCK), MAX_CLAIM),
        "max_bytes": SHORT_BYTES,
    }


def _number(text: object, least: float) -> float:
    """Reads a number that may be as large as it likes.

    Raises:
        BadField: It is none.
    """
    try:
        number = float(str(text))
    except ValueError:
        number = math.nan
    if not number >= least:  # also refuses NaN
        raise validators.BadField(f'"{validators.show(text)}" is no number from {least:g} on')
    return number


def _fetched(queue: Queue, claimed: Sequence[ClaimDelivery]) -> list[_Item]:
    """Returns items, ascending by their ids."""
    mark = mark_of(queue.qid)
    items = []
    for each in claimed:
        name = _id_of(each.message)
        ticket = encode((name, f"{each.receipt}-{mark}")).decode()
        items.append((name.encode(), _Item(ticket, _value_of(each.message))))
    items.sort(key=itemgetter(0))
    return [item for _, item in items]


def _id_of(message: Message) -> str:
    """Returns the id of an item; that of the message if it was not posted as one."""
    headers = () if message.meta is None else message.meta.headers
    return next((value for name, value in headers if name == ID), None) or message.id


def _value_of(message: Message) -> object:
    """Returns the value of an item: of a message that was not posted as one its text, or its bytes in base64."""
    body = message.body
    if isinstance(body, bytes):
        return b64encode(body).decode()
    return msgspec.Raw(body.encode()) if message.meta is not None and message.meta.json else body


def _revision(body: bytes) -> str:
    """Reads a ticket, as it was given out or as a JSON string once more.

    Raises:
        InvalidRequest: It is none.
    """
    ticket: str | tuple[str, str]
    try:
        ticket = _decode_ticket(body)
        if isinstance(ticket, str):
            ticket = _decode_ticket(ticket)
    except msgspec.ValidationError:
        ticket = ""
    except JSON_ERRORS:
        raise InvalidRequest({"ticket": "Is no JSON: send the ticket of the item, unchanged"}) from None
    if isinstance(ticket, str):
        raise InvalidRequest({"ticket": "Is not the ticket of an item: a list of an id and a revision"})
    return ticket[1]


def _receipt(revision: str, queue: Queue) -> ClaimReceipt | None:
    """Reads the revision of a ticket; None: it is not of this queue."""
    text, _, mark = revision.rpartition("-")
    try:
        receipt = parse_receipt(text)
    except ValueError:
        return None
    # Number 0 would be a lock that nobody has.
    return receipt if mark == mark_of(queue.qid) and receipt.partition <= queue.partitions and receipt.number else None


def _finished(settlements: Sequence[Settlement]) -> Response:
    """Answers a caller who finishes an item.

    Raises:
        TicketSpent: It has changed, or is done.
    """
    if any(each.status is not ReceiptStatus.DONE for each in settlements):
        raise TicketSpent("The item has changed, was fetched by somebody else since, or is done.")
    return Response(200, b"Well done, sir!", HTML)
