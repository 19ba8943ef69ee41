"""Views of claims: a message is delivered to one caller, until it is acknowledged, released or its claim expires."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast
from zlib import crc32

from msgspec import UNSET, Raw, structs

from queuey import ids
from queuey.claims import ClaimReceipt, ReceiptStatus, Settlement, parse_receipt
from queuey.errors import ClaimLost, InvalidRequest
from queuey.messages import Queue
from queuey.service import JoinedAck, QueueAccess, Service
from queuey.service.claims import JobState, ReleaseReason
from queuey.service.reading import SHORT_BYTES
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_body, read_object, read_query
from queuey.web.responses import JSON, Response, body_of, encode, json_response
from queuey.web.v1 import claim_schemas, schemas
from queuey.web.v1.message_json import render_claims, render_fetched
from queuey.web.v1.ranges import read_partitions
from queuey.web.v1.spec import (
    DEFAULT_CLAIM,
    DEFAULT_CLAIMS,
    DEFAULT_COUNTED,
    MAX_CLAIM,
    MOST_CLAIMS,
    MOST_COUNTED,
    MOST_NESTED,
    MOST_OF_ERROR,
    MOST_OF_STATE,
    MOST_OF_TEXT,
    MOST_OF_WORKER,
    MOST_QUEUES,
    MOST_STATES,
    MOST_WITH_REASON,
)
from queuey.web.validators import Errors

T = TypeVar("T")
CLAIM_FIELDS = frozenset({"limit", "ttl", "wait", "partitions", "worker"})
LIMIT_FIELDS = frozenset({"limit"})
JOBS_FIELDS = frozenset({"limit", "states"})


class _Given(NamedTuple):
    """What a request says: receipts, as texts and read; seconds for which to renew, and after which to release them.

    ``reason`` is why they are released; without ``retry`` they become dead letters.
    """

    texts: list[str]
    receipts: list[ClaimReceipt]
    ttl: float
    delay: float | None
    reason: ReleaseReason | None
    retry: bool


_Settle = Callable[[_Given, Queue], Coroutine[Any, Any, list[Settlement]]]
"""Settles receipts."""


class ClaimViews:
    """Views of ``/v1/{app}/{queue}/claims`` and what is below it, and of ``size`` and ``peek``."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._claims = service.claims
        self._limits = service.limits
        self._authorization = authorization

    # Claims

    async def claim(self, request: Request, match: Match) -> Response:
        """Claims messages."""
        await request.reserve(SHORT_BYTES)
        access = await self._enter(request, match)
        asked = self._asked(request)

        async def claim(queue: Queue) -> Response:
            ack = await request.read(partial(self._acknowledged_first, request, queue))
            claimed = await self._claims.claim(queue, **asked, ack=ack)
            acknowledged = _results(ack.texts, ack.settled or ())
            return Response(200, body_of(render_claims(claimed, mark_of(queue), acknowledged)), JSON)

        try:
            return await access.apply(claim)
        except InvalidRequest as error:
            error.fields = {"acknowledge" if name == "receipts" else name: text for name, text in error.fields.items()}
            raise

    async def claim_first(self, request: Request, match: Match) -> Response:
        """Claims messages of the first of several queues that has any."""
        await request.reserve(SHORT_BYTES)
        names, receipts = await request.read(partial(self._several, request))
        accesses = [await self._enter(request, {"app": match["app"], "queue": name}) for name in names]
        asked = self._asked(request)
        if asked.pop("partitions") is not None:
            raise InvalidRequest({"partitions": "Are of one queue, and this is about several"})
        acknowledged = await self._acknowledge_each(request, accesses, receipts)
        wait, waiter = asked.pop("wait"), asked.pop("waiter")
        queue, claimed = await self._claims.claim_first(
            accesses, lambda queue: self._claims.claim(queue, **asked), wait, waiter
        )
        mark = "" if queue is None else mark_of(queue)
        name = {"queue_name": None if queue is None else queue.name}
        return Response(200, body_of(render_claims(claimed, mark, acknowledged, name)), JSON)

    def _several(self, request: Request) -> tuple[list[str], dict[str, object]]:
        """Reads the queues to claim from, and the receipts of each."""
        given = read_object(read_body(request, self._limits.max_body))
        names, receipts = given.get("queues"), given.get("acknowledge")
        errors = Errors()
        if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
            errors["queues"] = validators.REQUIRED if names is None else "Is not a list of names"
        elif not 1 <= len(names) <= MOST_QUEUES or len(set(names)) < len(names):
            errors["queues"] = f"Names not 1 to {MOST_QUEUES} different queues"
        elif receipts is not None and not (isinstance(receipts, dict) and receipts.keys() <= set(names)):
            errors["acknowledge"] = "Is not an object with receipts by queue, of those named"
        errors.check()
        return names or [], receipts or {}

    async def _acknowledge_each(
        self, request: Request, accesses: Sequence[QueueAccess], receipts: Mapping[str, object]
    ) -> list[schemas.Settlement]:
        """Acknowledges receipts of several queues, unless an earlier try of the request has."""
        ack = request.first = request.first or JoinedAck()
        if ack.settled is not None:
            return _results(ack.texts, ack.settled)
        texts: list[str] = []
        settled: list[Settlement] = []
        for access in accesses:
            given = receipts.get(access.queue.name)
            if given is None:
                continue

            async def acknowledge(queue: Queue, given: object = given) -> list[Settlement]:
                errors = Errors()
                read = _receipts(f"acknowledge.{queue.name}", given, queue, errors)
                errors.check()
                return await self._claims.acknowledge(queue, read)

            settled += await access.apply(acknowledge)
            texts += cast("list[str]", given)
            ack.in_doubt = True
        ack.texts, ack.settled = texts, settled
        return _results(texts, settled)

    def _acknowledged_first(self, request: Request, queue: Queue) -> JoinedAck:
        """Returns what a claim acknowledges; reads it, unless an earlier try of the request has acknowledged it."""
        ack = request.first = request.first or JoinedAck()
        if ack.settled is None and (body := read_body(request, self._limits.max_body)):
            texts = read_object(body).get("acknowledge")
            errors = Errors()
            ack.receipts = [] if texts is None else _receipts("acknowledge", texts, queue, errors)
            errors.check()
            ack.texts = texts or ()
        return ack

    def _asked(self, request: Request) -> dict[str, Any]:
        """Reads what the query asks for, as the use case takes it."""
        given = read_query(request, CLAIM_FIELDS)
        errors = Errors()
        limit = errors.take("limit", validators.integer, given.get("limit"), 1, MOST_CLAIMS)
        ttl = _ttl(given, errors)
        wait = errors.take("wait", validators.decimal, given.get("wait"), 0, self._limits.max_wait)
        partitions = errors.take("partitions", read_partitions, given.get("partitions"))
        if partitions == ():
            errors["partitions"] = "Names no partition"
        worker = errors.take("worker", validators.plain_text, given.get("worker"), MOST_OF_WORKER)
        errors.check()
        return {
            "limit": limit or DEFAULT_CLAIMS,
            "ttl": ttl,
            "wait": wait or 0.0,
            "partitions": partitions,
            "max_bytes": SHORT_BYTES,
            "waiter": request.poll,
            "worker": worker or "",
        }

    # Receipts

    async def acknowledge(self, request: Request, match: Match) -> Response:
        """Acknowledges messages."""
        return await self._settle(request, match, lambda given, queue: self._claims.acknowledge(queue, given.receipts))

    async def renew(self, request: Request, match: Match) -> Response:
        """Renews claims."""
        return await self._settle(
            request, match, lambda given, queue: self._claims.renew(queue, given.receipts, given.ttl)
        )

    async def release(self, request: Request, match: Match) -> Response:
        """Releases claims."""
        return await self._settle(
            request,
            match,
            lambda given, queue: self._claims.release(
                queue, given.receipts, given.delay, given.reason, retry=given.retry
            ),
        )

    async def _settle(self, request: Request, match: Match, settle: _Settle) -> Response:
        access = await self._enter(request, match)

        async def call(queue: Queue) -> Response:
            given = await request.read(partial(self._read, request, queue))
            return _settled(given.texts, await settle(given, queue))

        return await access.apply(call)

    async def _enter(self, request: Request, match: Match) -> QueueAccess:
        return await self._authorization.admit(request, match, "work")

    def _read(self, request: Request, queue: Queue) -> _Given:
        """Reads receipts, and what to do with them."""
        given = read_object(read_body(request, self._limits.max_body))
        errors = Errors()
        receipts = _receipts("receipts", given.get("receipts"), queue, errors)
        ttl = _ttl(given, errors)
        delay = errors.take("delay", validators.decimal, given.get("delay"), 0, MAX_CLAIM)
        reason = _reason(given.get("reason"), len(receipts), errors)
        retry = given.get("retry", True)
        if not isinstance(retry, bool):
            errors["retry"] = "Is not true or false"
        elif not retry and len(receipts) > MOST_WITH_REASON:
            errors["retry"] = f"False is for at most {MOST_WITH_REASON} receipts at a time"
        errors.check()
        return _Given(given["receipts"], receipts, ttl, delay, reason, retry)

    async def set_states(self, request: Request, match: Match) -> Response:
        """Sets what a worker says of messages that it has."""
        access = await self._enter(request, match)

        async def call(queue: Queue) -> Response:
            states = await request.read(partial(self._states, request, queue))
            settled = await self._claims.set_states(queue, dict(states.values()), request.in_thread)
            return _settled(list(states), settled)

        return await access.apply(call)

    def _states(self, request: Request, queue: Queue) -> dict[str, tuple[ClaimReceipt, bytes]]:
        """Reads states by receipt."""
        given = read_object(read_body(request, self._limits.max_body)).get("states")
        if not isinstance(given, dict):
            text = validators.REQUIRED if given is None else "Is not an object with states by receipt"
            raise InvalidRequest({"states": text})
        if len(given) > MOST_STATES:
            raise InvalidRequest({"states": f"Has {len(given)} receipts: at most {MOST_STATES} at a time"})
        errors = Errors()
        receipts = _receipts("states", list(given), queue, errors)
        states = [encode(value) for value in given.values()]
        for index, (value, state) in enumerate(zip(given.values(), states, strict=True)):
            if len(state) > MOST_OF_STATE:
                errors[f"states.{index}"] = f"Has {len(state)} bytes of JSON: a state has at most {MOST_OF_STATE}"
            elif _levels(value) > MOST_NESTED:
                errors[f"states.{index}"] = f"Is nested more than {MOST_NESTED} levels deep"
        errors.check()
        return dict(zip(given, zip(receipts, states, strict=True), strict=True))

    # The queue

    async def release_all(self, request: Request, match: Match) -> Response:
        """Ends every claim."""
        access = await self._authorization.admit(request, match, "admin")
        await access.apply(self._claims.release_all)
        return json_response(schemas.Done())

    def counts(self, request: Request, match: Match) -> Response:
        """Counts claimed messages."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "measure")
        partitions = {
            str(number): claim_schemas.PartitionClaims(claimed=each.claimed, waiting=each.waiting)
            for number, each in self._claims.counts(access).items()
        }
        claimed = sum(each.claimed for each in partitions.values())
        waiting = sum(each.waiting for each in partitions.values())
        return json_response(claim_schemas.ClaimCounts(claimed=claimed, waiting=waiting, partitions=partitions))

    def size(self, request: Request, match: Match) -> Response:
        """Counts messages that are not acknowledged."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "measure")
        size = self._claims.size(access, _limit(request, MOST_COUNTED) or DEFAULT_COUNTED)
        return json_response(claim_schemas.QueueSize(size=size.count, exact=size.exact))

    def backlog(self, request: Request, match: Match) -> Response:
        """Says how much is to be done."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "measure")
        found = self._claims.backlog(access, _limit(request, MOST_COUNTED) or DEFAULT_COUNTED)
        return json_response(claim_schemas.Backlog(**structs.asdict(found)))

    def jobs(self, request: Request, match: Match) -> Response:
        """Shows which messages are claimed, and by whom."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "read")
        given, errors = read_query(request, JOBS_FIELDS), Errors()
        states = errors.take("states", validators.boolean, given.get("states")) or False
        most = MOST_STATES if states else MOST_CLAIMS
        limit = errors.take("limit", validators.integer, given.get("limit"), 1, most)
        errors.check()
        found = self._claims.outstanding(access, limit or DEFAULT_CLAIMS, states=states)
        jobs = [
            claim_schemas.Job(
                message_id=ids.to_hex(one.position),
                partition=one.partition,
                deliveries=one.deliveries,
                worker=one.worker,
                expires=one.expires or None,
                **(_said(one.state) if states else {}),
            )
            for one in found
        ]
        return json_response(claim_schemas.Jobs(jobs=jobs))

    def peek(self, request: Request, match: Match) -> Response:
        """Shows the oldest messages that are not acknowledged."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "read")
        messages = self._claims.peek(access, _limit(request, MOST_CLAIMS) or DEFAULT_CLAIMS)
        return Response(200, body_of(render_fetched(messages)), JSON)


def _levels(value: object) -> int:
    """Returns how many objects and lists of a JSON value stand within each other, at most."""
    levels, nested = 0, [value]
    while nested := [each for each in nested if isinstance(each, dict | list)]:
        nested = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]
        levels += 1
    return levels


def _said(state: JobState | None) -> dict[str, Any]:
    """Returns the fields of a job that say what its worker has said of it."""
    return {"state": None if state is None else Raw(state.json), "state_at": None if state is None else state.at}


def _limit(request: Request, most: int) -> int | None:
    errors = Errors()
    limit = errors.take("limit", validators.integer, read_query(request, LIMIT_FIELDS).get("limit"), 1, most)
    errors.check()
    return limit


def _receipts(name: str, value: object, queue: Queue, errors: Errors) -> list[ClaimReceipt]:
    """Reads the receipts of a field; bad ones are noted in ``errors``."""
    if not isinstance(value, list):
        errors[name] = validators.REQUIRED if value is None else "Is not a list"
        return []
    if len(value) > MOST_CLAIMS:
        errors[name] = f"Longer than maximum length {MOST_CLAIMS}"
        return []
    found = []
    mark = mark_of(queue)
    for index, item in enumerate(value):
        text, _, marked = item.rpartition("-") if isinstance(item, str) else ("", "", "")
        try:
            receipt = parse_receipt(text)
        except ValueError:
            errors[f"{name}.{index}"] = f'"{validators.show(item)}" is not a receipt'
            continue
        if not receipt.number:
            errors[f"{name}.{index}"] = f'"{item}" is of a claim with ttl=0, which only shows messages'
        elif marked != mark or receipt.partition > queue.partitions:
            errors[f"{name}.{index}"] = f'"{item}" is of another queue, or of before this one was purged'
        found.append(receipt)
    return found


def _reason(value: object, count: int, errors: Errors) -> ReleaseReason | None:
    """Reads why messages are released; what is wrong is noted in ``errors``."""
    if value is None:
        return None
    if not isinstance(value, dict):
        errors["reason"] = "Is not an object with error and text"
        return None
    if count > MOST_WITH_REASON:
        errors["reason"] = f"Is for at most {MOST_WITH_REASON} receipts at a time"
    error = errors.take("reason.error", validators.plain_text, value.get("error"), MOST_OF_ERROR)
    text = errors.take("reason.text", validators.text, value.get("text"), MOST_OF_TEXT)
    return ReleaseReason(error or "Released", text or "")


def mark_of(queue: Queue) -> str:
    """Returns the end of a queue's receipts; it differs between queues, and before and after a purge."""
    return f"{crc32(b'%d' % queue.qid) & 0xFFFFFF:06x}"


def _ttl(given: Mapping[str, Any], errors: Errors) -> float:
    """Reads how long claims are to last, in whole milliseconds, as they are recorded."""
    ttl = errors.take("ttl", validators.decimal, given.get("ttl"), 0, MAX_CLAIM)
    return DEFAULT_CLAIM if ttl is None else round(ttl, 3)


def _settled(texts: Sequence[str], settlements: Sequence[Settlement]) -> Response:
    """Says what became of receipts, which are given as texts in the same order.

    Raises:
        ClaimLost: Some were superseded.
    """
    results = _results(texts, settlements)
    if any(each.status is ReceiptStatus.SUPERSEDED for each in settlements):
        raise ClaimLost(results)
    return json_response(claim_schemas.Settled(results=results))


def _results(texts: Sequence[str], settlements: Sequence[Settlement]) -> list[schemas.Settlement]:
    return [
        schemas.Settlement(
            receipt=text,
            status="superseded" if each.status is ReceiptStatus.SUPERSEDED else "ok",
            expires=each.expires or UNSET,
        )
        for text, each in zip(texts, settlements, strict=True)
    ]
