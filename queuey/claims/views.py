"""Views of claims: a message is delivered to one caller, until it is acknowledged, released or its claim expires."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from msgspec import structs

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, QUEUE, Operation, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api import claims as api
from queuey.api.jobs import MAX_JOBS, MAX_RESULT, MAX_RESULTS, JobInfos, JobsById
from queuey.api.messages import Fetched, QueueReadError
from queuey.api.values import Done, nesting_depth
from queuey.claims.claims import QUEUE_ERRORS, ClaimUseCases, HandlerFailure
from queuey.claims.job_records import JobResult
from queuey.claims.jobs import JobAnswer, JobPoll
from queuey.claims.log.claim_search import PiggybackedAck
from queuey.claims.log.log_requests import ClaimDelivery, ClaimUndecided, message_of
from queuey.claims.rules.operator_acts import JobStanding
from queuey.claims.rules.receipts import (
    ClaimReceipt,
    InvalidReceipt,
    ReceiptOfAnotherQueue,
    ReceiptOutcome,
    ReceiptStatus,
    format_receipt,
    parse_receipt,
)
from queuey.messages.message_json import render_fetched, render_messages
from queuey.messages.message_views import parse_locations, parse_place
from queuey.messages.range_reads import MAX_SHORT_BYTES
from queuey.messages.range_views import read_partitions
from queuey.model.errors import ClaimLost, InvalidRequest, QueueyError
from queuey.model.messages import Queue
from queuey.runtime.limits import Limits
from queuey.runtime.waiters import Waiter
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.openapi import Tag
from queuey.web.requests import MAX_SHORT_BODY, Queries, Request, read_query
from queuey.web.responses import JSON, Response, encode, json_response
from queuey.web.validators import Errors

S = TypeVar("S", bound=api.SomeReceipts)
Refusals = dict[str, QueueyError]
"""Errors by the names of queues."""
MAX_RESULT_SIZE = 1 << 53
"""Max value in ``too_large``: bytes of a result that the caller did not send."""
_MAX_JOB_BYTES = MAX_RESULT + 2 * api.MAX_STATE + api.MAX_TEXT
"""Max bytes of a job in an answer, approximately."""
_MAX_STATES_BYTES = api.MAX_STATES * api.MAX_STATE
"""Max bytes of the states in an answer."""


class _ReceiptsBody(NamedTuple, Generic[S]):
    """The body of a request about receipts, with its receipts parsed."""

    body: S
    receipts: list[ClaimReceipt]


class _Claimed(msgspec.Struct):
    """Messages that a claim got; false without messages.

    Attributes:
        queue_id: Number of the queue; 0 without messages.
        messages: Claimed messages.
        name: Queue of the messages, in a claim from several queues.
        result_ttl: Option of the queue.
    """

    queue_id: int
    messages: list[ClaimDelivery]
    name: str | None = None
    result_ttl: int = 0

    def __bool__(self) -> bool:
        return bool(self.messages)


class ClaimViews(Views):
    """Views of claims and jobs: ``/v1/{app}/{queue}/claims``, ``jobs``, ``size``, ``backlog`` and ``peek``."""

    def __init__(self, authorization: Authorization, limits: Limits, claims: ClaimUseCases) -> None:
        super().__init__(authorization, limits)
        self._claims = claims
        self._claim, self._claim_of_several = self.fields(api.ClaimRequest), self.fields(api.ClaimOfSeveral)
        self._query = self.fields(api.ClaimQuery)
        self._jobs_by_id = Queries(self.fields(JobsById).query).read
        self._terms = Queries(lambda request: self._read_terms(read_query(request, self._query.names))).read

    # Claims

    async def claim(self, request: Request, match: Match) -> Response:
        """Acknowledges the receipts in the body, and claims messages in the same call.

        Waits for messages if the queue has none, for as long as the caller allows.
        """
        access = await self._authorization.admit(request, match, "work")
        body: dict[str, Any] = {}
        if request.body is not None and len(request.body) > MAX_SHORT_BODY:
            body = await request.in_thread(partial(self._claim.json, request))
        elif request.body != b"":
            body = self._claim.json(request, b"{}")
        wait, terms = self._terms(request) if body.keys() <= {"acknowledge"} else self._merge_terms(request, body)
        receipts = body.get("acknowledge")
        ack = PiggybackedAck()

        async def attempt(waiter: Waiter | None) -> _Claimed:
            current = access if waiter is None else await self._enter_to_work(request, match)
            size = MAX_SHORT_BYTES + terms["states"] * _MAX_STATES_BYTES
            if not request.share.reserve_at_once(size):
                await request.share.reserve(size)
            return await current.apply(partial(claim, waiter=waiter))

        async def claim(queue: Queue, waiter: Waiter | None) -> _Claimed:
            if ack.settled is None and receipts not in (None, ""):
                ack.receipts = _read_receipts("acknowledge", receipts, queue)
                ack.texts = receipts
                if "results" in body or "too_large" in body:
                    ack.results = _read_results_of(body, ack.texts, ack.receipts)
            messages = await self._claims.claim(queue, **terms, waiter=waiter, ack=ack)
            return _Claimed(queue.qid, messages, result_ttl=queue.result_ttl)

        try:
            claimed = await request.until_found(wait, attempt, ClaimUndecided)
        except InvalidRequest as error:
            error.fields = {"acknowledge" if name == "receipts" else name: text for name, text in error.fields.items()}
            raise
        finally:
            request.in_doubt = ack.in_doubt
        acknowledged = _make_settlements(ack.texts, ack.settled or ())
        extra = _result_fields(claimed.result_ttl) if claimed.result_ttl else None
        return Response(200, render_claims(claimed.messages, claimed.queue_id, acknowledged, extra), JSON)

    async def claim_first(self, request: Request, match: Match) -> Response:
        """Claims messages from the first of several queues that has any.

        Acknowledges receipts before, also if the claim gets nothing; lists queues that refuse the caller in the answer.
        """
        self._authorization.require_credential(request, await self._authorization.identify(request))
        body = await request.parse_body(partial(self._claim_of_several.json, request))
        names, receipts = _read_several(body)
        refused: Refusals = {}
        accesses = await self._enter_each(request, match["app"], names, refused)
        wait, terms = self._merge_terms(request, body)
        if terms["partitions"] is not None:
            raise InvalidRequest({"partitions": "Can only be given in a claim from one queue"})
        acknowledged = await self._acknowledge_each(request, accesses, receipts, refused, body)

        async def attempt(waiter: Waiter | None) -> _Claimed:
            current = accesses
            if waiter is not None:
                current = await self._enter_each(request, match["app"], names, refused)
            await request.share.reserve(MAX_SHORT_BYTES + terms["states"] * _MAX_STATES_BYTES)
            claim = partial(self._claims.claim, **terms)
            queue, messages = await self._claims.claim_first(current, claim, waiter, refused)
            if queue is None:
                return _Claimed(0, messages)
            return _Claimed(queue.qid, messages, queue.name, queue.result_ttl)

        claimed = await request.until_found(wait, attempt, ClaimUndecided)
        extra = {"queue_name": claimed.name, **_result_fields(claimed.result_ttl)}
        if refused:
            errors = {name: error_texts(error) for name, error in refused.items()}
            extra["refused"] = [QueueReadError(queue_name=name, error_msg=texts) for name, texts in errors.items()]
        return Response(200, render_claims(claimed.messages, claimed.queue_id, acknowledged, extra), JSON)

    async def _enter_each(
        self, request: Request, application: str, names: Sequence[str], refused: Refusals
    ) -> list[QueueAccess]:
        refused.clear()
        accesses = []
        for name in names:
            try:
                accesses.append(await self._enter_to_work(request, {"app": application, "queue": name}))
            except QUEUE_ERRORS as error:
                refused[name] = error
        return accesses

    async def _acknowledge_each(
        self,
        request: Request,
        accesses: Sequence[QueueAccess],
        receipts: Mapping[str, object],
        refused: Refusals,
        body: Mapping[str, object],
    ) -> list[api.Settlement]:
        """Acknowledges receipts of several queues, one queue after the other.

        A receipt that is not valid fails the request before any queue is changed. Leaves out the receipts of a queue
        that fails meanwhile, and puts its error into ``refused``. After a success the request is ``in_doubt``.
        """
        for access in accesses:
            if (queue_receipts := receipts.get(access.queue.name)) is not None:
                _read_receipts(f"acknowledge.{access.queue.name}", queue_receipts, access.queue)
        texts: list[str] = []
        settled: list[ReceiptOutcome] = []
        for access in accesses:
            queue_receipts = receipts.get(access.queue.name)
            if queue_receipts is None:
                continue

            async def acknowledge(queue: Queue, queue_receipts: object = queue_receipts) -> list[ReceiptOutcome]:
                parsed = _read_receipts(f"acknowledge.{queue.name}", queue_receipts, queue)
                # Receipts of other queues have other marks, so each result belongs to one queue.
                results = _read_results_of(body, cast("list[str]", queue_receipts), parsed)
                return await self._claims.acknowledge(queue, parsed, results)

            try:
                settled += await access.apply(acknowledge)
            except QUEUE_ERRORS as error:
                refused[access.queue.name] = error
                continue
            texts += cast("list[str]", queue_receipts)
            request.in_doubt = True
        return _make_settlements(texts, settled)

    def _merge_terms(self, request: Request, body: Mapping[str, object]) -> tuple[float, dict[str, Any]]:
        names = self._query.names
        terms = {name: body[name] for name in names & body.keys() if body[name] is not None}
        if not terms:
            return self._terms(request)
        query = read_query(request, names)
        if twice := query.keys() & terms.keys():
            raise InvalidRequest(dict.fromkeys(sorted(twice), "Is given twice: in the query and in the body"))
        return self._read_terms(query | terms)

    def _read_terms(self, values: Mapping[str, object]) -> tuple[float, dict[str, Any]]:
        errors = Errors()
        terms = self._query.read(values, errors)
        partitions = errors.parse_field("partitions", read_partitions, terms.partitions)
        if partitions == ():
            errors["partitions"] = "Does not name a partition"
        errors.check()
        return terms.wait, {
            "limit": terms.limit,
            "ttl": round(terms.ttl, 3),
            "partitions": partitions,
            "max_bytes": MAX_SHORT_BYTES,
            "worker": terms.worker,
            "states": terms.states,
        }

    # Receipts

    async def acknowledge(self, request: Request, match: Match) -> Response:
        def acknowledge(
            parsed: _ReceiptsBody[api.ReceiptsWithResults], queue: Queue
        ) -> Coroutine[Any, Any, list[ReceiptOutcome]]:
            body = {"results": parsed.body.results, "too_large": parsed.body.too_large}
            results = _read_results_of(body, parsed.body.receipts or (), parsed.receipts)
            return self._claims.acknowledge(queue, parsed.receipts, results)

        return await self._settle(request, match, api.ReceiptsWithResults, acknowledge)

    async def renew(self, request: Request, match: Match) -> Response:
        return await self._settle(
            request,
            match,
            api.Renewal,
            lambda parsed, queue: self._claims.renew(queue, parsed.receipts, round(parsed.body.ttl, 3)),
        )

    async def release(self, request: Request, match: Match) -> Response:
        def release(parsed: _ReceiptsBody[api.Release], queue: Queue) -> Coroutine[Any, Any, list[ReceiptOutcome]]:
            body = parsed.body
            reason = (
                None if body.reason is None else HandlerFailure(body.reason.error or "Released", body.reason.text or "")
            )
            counts = {"retry": body.retry, "begun": body.begun}
            return self._claims.release(queue, parsed.receipts, body.delay, reason, **counts)

        return await self._settle(request, match, api.Release, release)

    async def _settle(
        self,
        request: Request,
        match: Match,
        kind: type[S],
        settle: Callable[[_ReceiptsBody[S], Queue], Coroutine[Any, Any, list[ReceiptOutcome]]],
    ) -> Response:
        access = await self._enter_to_work(request, match)

        async def call(queue: Queue) -> Response:
            parsed = await request.parse_body(partial(self._read_receipts_body, request, kind, queue))
            return _settled_response(parsed.body.receipts, await settle(parsed, queue))

        return await access.apply(call)

    async def _enter_to_work(self, request: Request, match: Match) -> QueueAccess:
        return await self._authorization.admit(request, match, "work")

    def _read_receipts_body(self, request: Request, kind: type[S], queue: Queue) -> _ReceiptsBody[S]:
        errors = Errors()
        body = self.fields(kind).body(request, errors)
        receipts = _parse_receipts("receipts", body.receipts or [], queue, errors)
        if isinstance(body, api.Release):
            body = cast("S", self._read_reason(body, len(receipts), errors))
        errors.check()
        return _ReceiptsBody(body, receipts)

    def _read_reason(self, release: api.Release, count: int, errors: Errors) -> api.Release:
        if not release.retry and count > api.MAX_WITH_REASON:
            errors.setdefault("retry", f"False is allowed for at most {api.MAX_WITH_REASON} receipts at a time")
        if release.reason is None:
            return release
        if not isinstance(release.reason, dict):
            errors["reason"] = "Is not an object with error and text"
            return release
        if count > api.MAX_WITH_REASON:
            errors["reason"] = f"Is allowed for at most {api.MAX_WITH_REASON} receipts at a time"
        reason_errors = Errors()
        reason = self.fields(api.ReleaseReason).read(release.reason, reason_errors)
        errors.include(reason_errors, "reason.")
        return structs.replace(release, reason=reason)

    async def set_states(self, request: Request, match: Match) -> Response:
        access = await self._enter_to_work(request, match)

        async def call(queue: Queue) -> Response:
            states = await request.parse_body(partial(self._read_states, request, queue))
            settled = await self._claims.set_states(queue, dict(states.values()))
            return _settled_response(list(states), settled)

        return await access.apply(call)

    def _read_states(self, request: Request, queue: Queue) -> dict[str, tuple[ClaimReceipt, bytes]]:
        """Reads states by receipt, each with the parsed receipt and the state as JSON.

        Refuses all of them if one is too large or too deeply nested.
        """
        values = self.fields(api.States).json(request).get("states")
        if not isinstance(values, dict):
            text = validators.REQUIRED if values is None else "Is not an object with states by receipt"
            raise InvalidRequest({"states": text})
        if len(values) > api.MAX_STATES:
            raise InvalidRequest({"states": f"Has {len(values)} receipts: at most {api.MAX_STATES} at a time"})
        errors = Errors()
        receipts = _parse_receipts("states", list(values), queue, errors)
        states = [encode(value) for value in values.values()]
        for index, (value, state) in enumerate(zip(values.values(), states, strict=True)):
            if len(state) > api.MAX_STATE:
                errors[f"states.{index}"] = f"Has {len(state)} bytes of JSON: a state has at most {api.MAX_STATE}"
            elif nesting_depth(value) > api.MAX_NESTED:
                errors[f"states.{index}"] = f"Is nested more than {api.MAX_NESTED} levels deep"
        errors.check()
        return dict(zip(values, zip(receipts, states, strict=True), strict=True))

    # Actions of operators

    async def cancel(self, request: Request, match: Match) -> Response:
        job = await self._apply_to_job(request, match, self._claims.jobs.cancel)
        return json_response(msgspec.convert({"status": "ok", "job": job}, api.CancelledJob))

    async def retry(self, request: Request, match: Match) -> Response:
        job = await self._apply_to_job(request, match, self._claims.jobs.make_available_now)
        return json_response(msgspec.convert({"status": "ok", "job": job}, api.RetriedJob))

    async def _apply_to_job(
        self, request: Request, match: Match, act: Callable[..., Coroutine[Any, Any, JobStanding]]
    ) -> JobStanding:
        """Applies an operator's action to the job that the path names.

        It needs ``claim``. If the queue names principals, only those who may work on it are admitted.
        """
        partition, position = parse_place(match["id"])
        access = await self._authorization.admit(request, match, "claim")
        if access.queue.principals:  # A principal that may only read can record offsets, but must not end jobs.
            access = await self._enter_to_work(request, match)
        return await access.apply(partial(act, partition=partition, position=position))

    # The queue

    async def release_all(self, access: QueueAccess) -> None:
        await access.apply(self._claims.release_all)

    async def counts(self, access: QueueAccess) -> api.ClaimCounts:
        return await self._claims.overview.count_claims(access)

    async def size(self, access: QueueAccess, query: api.CountQuery) -> api.QueueSize:
        return await self._claims.overview.size(access, query.limit)

    async def backlog(self, access: QueueAccess, query: api.CountQuery) -> api.Backlog:
        return await self._claims.overview.backlog(access, query.limit)

    async def jobs(self, access: QueueAccess, query: api.JobsQuery) -> api.DeliveredJobs:
        """Returns outstanding jobs. With states, a limit above that of states is refused."""
        if query.states:
            errors = Errors()
            errors.parse_field("limit", validators.parse_integer, query.limit, 1, api.MAX_STATES)
            errors.check()
        return api.DeliveredJobs(jobs=await self._claims.overview.list_jobs(access, query.limit, states=query.states))

    async def show_jobs(self, request: Request, match: Match) -> Response:
        """Shows jobs by their ids, at once or after waiting until one of them has ended.

        If none has ended in time, it shows how they stand.
        """
        access = await self._authorization.admit(request, match, "read")
        query = self._jobs_by_id(request)
        poll = JobPoll(parse_locations(match["ids"], MAX_JOBS), states=query.states)

        async def attempt(waiter: Waiter | None) -> JobAnswer:
            current = access if waiter is None else await self._authorization.admit(request, match, "read")
            await request.share.reserve(len(poll.locations) * _MAX_JOB_BYTES)
            return await current.apply(partial(self._claims.jobs.read_answer, poll=poll, waiter=waiter))

        answer = await request.until_found(query.wait, attempt)
        if not answer.infos:
            answer = await attempt(None)
        return json_response(JobInfos(jobs=answer.infos))

    async def peek(self, request: Request, match: Match) -> Response:
        access = await self._authorization.admit(request, match, "read")
        query = self.fields(api.LimitQuery).query(request)
        await request.share.reserve(self._limits.page_bytes)
        messages = await self._claims.overview.peek(access, query.limit)
        return Response(200, render_fetched(messages), JSON)


def _read_several(body: Mapping[str, Any]) -> tuple[list[str], dict[str, object]]:
    names, receipts = body.get("queues"), body.get("acknowledge")
    errors = Errors()
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        errors["queues"] = validators.REQUIRED if names is None else "Is not a list of names"
    elif not 1 <= len(names) <= api.MAX_QUEUES or len(set(names)) < len(names):
        errors["queues"] = f"Must name 1 to {api.MAX_QUEUES} different queues"
    elif receipts is not None and not (isinstance(receipts, dict) and receipts.keys() <= set(names)):
        errors["acknowledge"] = "Is not an object with receipts by the names in queues"
    errors.check()
    return names or [], receipts or {}


def _read_receipts(name: str, value: object, queue: Queue) -> list[ClaimReceipt]:
    errors = Errors()
    texts = errors.parse_field(name, validators.parse_list, value, api.MAX_CLAIMS)
    receipts = _parse_receipts(name, texts or [], queue, errors)
    errors.check()
    return receipts


def _read_results_of(
    body: Mapping[str, object], texts: Sequence[str], receipts: Sequence[ClaimReceipt]
) -> dict[ClaimReceipt, JobResult]:
    """Reads the results in a body, by receipt. A result that is too large is represented by its size in bytes.

    For a receipt in both, ``too_large`` precedes ``results``. Ignores receipts that the request does not acknowledge.

    Raises:
        InvalidRequest: The results are not an object by receipt, are too many, or are nested too deeply.
    """
    if body.get("results") is None and body.get("too_large") is None:
        return {}
    by_text = dict(zip(texts, receipts, strict=True))
    errors = Errors()
    results: dict[ClaimReceipt, JobResult] = {}
    for name in ("results", "too_large"):
        values = body.get(name) or {}
        if not isinstance(values, dict):
            errors[name] = "Is not an object with a value by receipt"
        elif len(values) > MAX_RESULTS:
            errors[name] = f"Has {len(values)} receipts: at most {MAX_RESULTS} at a time"
        elif name == "too_large" and not all(
            type(size) is int and 0 < size <= MAX_RESULT_SIZE for size in values.values()
        ):
            errors[name] = "Is not an object with a number of bytes by receipt"
        else:
            results |= _read_results(values, by_text, errors) if name == "results" else _read_sizes(values, by_text)
    errors.check()
    return results


def _read_sizes(values: Mapping[str, int], by_text: Mapping[str, ClaimReceipt]) -> dict[ClaimReceipt, JobResult]:
    return {by_text[text]: size for text, size in values.items() if text in by_text}


def _read_results(
    values: Mapping[str, object], by_text: Mapping[str, ClaimReceipt], errors: Errors
) -> dict[ClaimReceipt, JobResult]:
    """Returns results as JSON, and a result that is too large as its number of bytes.

    Ignores null, and receipts that the request does not acknowledge. Puts values nested too deeply into ``errors``.
    """
    results: dict[ClaimReceipt, JobResult] = {}
    for number, (text, value) in enumerate(values.items()):
        if nesting_depth(value) > api.MAX_NESTED:
            errors[f"results.{number}"] = f"Is nested more than {api.MAX_NESTED} levels deep"
        elif text in by_text and value is not None:
            json = encode(value)
            results[by_text[text]] = json if len(json) <= MAX_RESULT else len(json)
    return results


def _result_fields(result_ttl: int) -> dict[str, object]:
    return {"result_ttl": result_ttl} if result_ttl else {}


def _parse_receipts(name: str, texts: list[Any], queue: Queue, errors: Errors) -> list[ClaimReceipt]:
    receipts = []
    for index, item in enumerate(texts):
        try:
            receipts.append(parse_receipt(item if isinstance(item, str) else "", queue))
        except InvalidReceipt as error:
            errors[f"{name}.{index}"] = f'"{validators.show(item)}" {error}'
            errors.depend_on_row |= isinstance(error, ReceiptOfAnotherQueue)
    return receipts


def _settled_response(texts: Sequence[str], settlements: Sequence[ReceiptOutcome]) -> Response:
    results = _make_settlements(texts, settlements)
    if any(settlement.status is ReceiptStatus.SUPERSEDED for settlement in settlements):
        raise ClaimLost(results)
    return json_response(api.Settled(results=results))


def _make_settlements(texts: Sequence[str], settlements: Sequence[ReceiptOutcome]) -> list[api.Settlement]:
    return [
        api.Settlement(
            receipt=text,
            status="superseded" if settlement.status is ReceiptStatus.SUPERSEDED else "ok",
            expires=settlement.expires or None,
            cancelled=settlement.cancelled,
        )
        for text, settlement in zip(texts, settlements, strict=True)
    ]


def render_claims(
    claims: Sequence[ClaimDelivery],
    queue_id: int,
    acknowledged: object = None,
    more: Mapping[str, object] | None = None,
) -> list[bytes]:
    parts = [
        b',"receipt":"%b","deliveries":%d,"expires":%.3f%b'
        % (
            format_receipt(claim.receipt, queue_id).encode(),
            claim.deliveries,
            claim.expires,
            b"" if claim.state is None and not (claim.uncounted or claim.suspected) else _render_earlier(claim),
        )
        for claim in claims
    ]
    fields = dict(more or {}) | ({"acknowledged": acknowledged} if acknowledged else {})
    end = b"]," + encode(fields)[1:] if fields else b"]}"
    return [b'{"status":"ok","messages":[', *render_messages(list(map(message_of, claims)), parts), end]


def _render_earlier(claim: ClaimDelivery) -> bytes:
    fields = b',"handed_out":%d' % claim.handed_out if claim.uncounted else b""
    fields += b',"suspected":true' * claim.suspected
    return fields if claim.state is None else b'%b,"state":%b' % (fields, claim.state)


JOBS_TAG = Tag("Jobs", "Claim messages as jobs, acknowledge or release them, and see what became of them.")
JOB = QUEUE + "/jobs/{id}"


def _declare_settlement(word: str, summary: str, view: Callable[..., Any], body: Any) -> Operation:  # noqa: ANN401 - a msgspec type
    """Returns an operation on claims, which answers 409 with the same body if some of them failed."""
    about = "409: some messages were delivered again, moved or replaced (see `results`). All others succeeded."
    path = f"POST {QUEUE}/claims/{word}"
    return declare(JOBS_TAG, path, summary, api.Settled, view, about=about, body=body, further_errors=(409,))


OPERATIONS = (
    declare(
        JOBS_TAG,
        f"POST {QUEUE}/claims",
        "Claim messages",
        api.ClaimedMessages,
        ClaimViews.claim,
        about="409: the queue's consistency level does not allow claims. A superseded receipt does not fail the "
        "request. Repeating the request is safe.",
        query=api.ClaimQuery,
        body=api.ClaimRequest,
        body_may_be_empty=True,
        further_errors=(409,),
        ends_with_client=True,
    ),
    declare(
        JOBS_TAG,
        f"POST {APP}/_claims",
        "Claim from several queues, the first that has messages",
        api.ClaimsOfOne,
        ClaimViews.claim_first,
        about="Up to 10 queues, in order of preference. `wait` waits for all of them. `refused` has the queues that "
        "cannot be claimed from. If that is all of them, the status is that of the first.",
        query=api.SeveralClaimsQuery,
        body=api.ClaimOfSeveral,
        further_errors=(409,),
        ends_with_client=True,
        resource="claims_of_several",
    ),
    _declare_settlement("ack", "Acknowledge messages", ClaimViews.acknowledge, api.ReceiptsWithResults),
    _declare_settlement("renew", "Renew claims", ClaimViews.renew, api.Renewal),
    _declare_settlement("release", "Release claims", ClaimViews.release, api.Release),
    _declare_settlement("state", "Set job states", ClaimViews.set_states, api.States),
    declare(
        JOBS_TAG,
        f"GET {QUEUE}/claims",
        "Count claims",
        api.ClaimCounts,
        ClaimViews.counts,
        "measure",
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"DELETE {QUEUE}/claims",
        "Release all claims",
        Done,
        ClaimViews.release_all,
        "admin",
        about="Other workers get the claimed messages. The present ones are not stopped, but cannot acknowledge.",
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"GET {QUEUE}/size",
        "Count messages, without acknowledged ones",
        api.QueueSize,
        ClaimViews.size,
        "measure",
        query=api.CountQuery,
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"GET {QUEUE}/backlog",
        "Count backlog, by what messages wait for",
        api.Backlog,
        ClaimViews.backlog,
        "measure",
        query=api.CountQuery,
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"GET {QUEUE}/jobs",
        "List jobs, delivered messages and their workers",
        api.DeliveredJobs,
        ClaimViews.jobs,
        "read",
        query=api.JobsQuery,
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        "GET " + QUEUE + "/jobs/{ids}",
        "Show jobs, by id",
        JobInfos,
        ClaimViews.show_jobs,
        about="Shows what became of up to 100 jobs. `wait` waits until one of them has ended.",
        query=JobsById,
        further_errors=(409,),
        ends_with_client=True,
        resource="jobs_by_id",
    ),
    declare(
        JOBS_TAG,
        f"POST {JOB}/cancel",
        "Cancel job",
        api.CancelledJob,
        ClaimViews.cancel,
        about="Removes a job that waits or is delayed. A claimed job is not delivered again, and its worker gets "
        "`cancelled` when it renews the claim.",
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"POST {JOB}/retry",
        "Retry job now",
        api.RetriedJob,
        ClaimViews.retry,
        about="Makes a job claimable at once that is delayed, or was released with a delay.",
        further_errors=(409,),
    ),
    declare(
        JOBS_TAG,
        f"GET {QUEUE}/peek",
        "Peek at messages, the oldest without acknowledged ones",
        Fetched,
        ClaimViews.peek,
        query=api.LimitQuery,
        further_errors=(409,),
        ends_with_client=True,
    ),
)
