"""Views of range reads of one queue, and of several in one request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, Views, declare
from queuey.access.queue_access import QueueAccess
from queuey.api.messages import ManyRanges, ManyRead, QueueRange, RangeFields, RangeQuery
from queuey.messages.message_json import render_range_answer
from queuey.messages.message_views import MESSAGES_TAG
from queuey.messages.range_reads import MAX_SHORT_BYTES, NotShort, RangeSource, Reader, are_empty
from queuey.messages.ranges import Bound, RangeAnswer, RangeRequest, parse_bound
from queuey.model.errors import QueueyError
from queuey.runtime.limits import Limits
from queuey.runtime.waiters import Waiter
from queuey.web import validators
from queuey.web.endpoint import Handler, Match
from queuey.web.errors import error_texts
from queuey.web.requests import Queries, Request, read_query, wants_events
from queuey.web.responses import JSON, Response, encode
from queuey.web.validators import Errors, bad_json

T = TypeVar("T")
Ranges = list[tuple[str, RangeRequest]]
BOUNDS = ("since", "after", "before", "until")


def _read_bound(value: object) -> Bound:
    try:
        return parse_bound(validators.parse_text(value))
    except ValueError:
        forms = "a message id, seconds since 1970, ISO 8601 with a zone, or a cursor"
        raise validators.BadField(f'"{validators.show(value)}" is not {forms}') from None


def read_partitions(value: object) -> tuple[int, ...] | None:
    """Parses the partitions to read: a comma list, in JSON also a list. Returns None for ``*``, which means all.

    Blank text names none. A number that is too long becomes 0, which has no messages.
    """
    if isinstance(value, list):
        items = [str(item) if isinstance(item, int) else "" for item in value]
    else:
        text = validators.parse_text(value).strip()
        if text == "*":
            return None
        items = text.split(",") if text else []
    numbers = []
    for item in map(str.strip, items):
        if not (item.isascii() and item.isdigit()):
            raise validators.BadField(f'"{validators.show(value)}" is not a list of partitions')
        # A number too long to be a partition becomes 0, which is as empty as any partition that does not exist.
        numbers.append(int(item) if len(item) < 5 else 0)  # noqa: PLR2004
    return tuple(numbers)


def take_partitions(value: object, errors: Errors, default: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Parses the partitions to read as :func:`read_partitions` does, or returns ``default`` without any.

    Puts a parse error into ``errors``.
    """
    if value is None:
        return default
    try:
        return read_partitions(value)
    except ValueError as error:
        errors["partitions"] = str(error)
        return default


def read_range(fields: RangeFields, values: Mapping[str, Any], limits: Limits, errors: Errors) -> RangeRequest:
    """Reads the positions and flags of a range; without ``partitions``, it has partition 1.

    Puts bad fields into ``errors``.
    """
    since, after, before, until = (errors.parse_field(name, _read_bound, getattr(fields, name)) for name in BOUNDS)
    # Blank text names no partition.
    partitions = take_partitions(values.get("partitions"), errors, (1,))
    keeps_read_delay = validators.parse_boolean(fields.delay)
    early, early_after = _read_early(fields.early, errors)
    descending = fields.order == "descending"
    if early and (descending or not keeps_read_delay):
        errors["early"] = "Early messages follow an ascending read that keeps the read delay"
    return RangeRequest(
        partitions=partitions,
        limit=fields.limit or limits.default_limit,
        descending=descending,
        since=since,
        after=after,
        before=before,
        until=until,
        keeps_read_delay=keeps_read_delay,
        early=early,
        early_after=early_after,
        merge=validators.parse_boolean(fields.merge),
    )


def _read_early(value: object, errors: Errors) -> tuple[bool, Bound]:
    """Returns whether early messages are requested, and the bound that they must be above.

    Text with a colon or of 32 characters is such a bound. Any other value is a lenient boolean (``false``, ``0`` and
    blank are false, everything else is true) without a bound; only a bad bound goes into ``errors``.
    """
    if isinstance(value, str) and (":" in value or len(value.strip()) == 32):  # noqa: PLR2004 - digits of an id
        return True, errors.parse_field("early", _read_bound, value)
    return validators.parse_boolean(value), None


async def read_page(request: Request, read: Callable[..., Coroutine[Any, Any, T]]) -> T:
    """Reads and renders messages: on the event loop if that is short and there is memory, or else in a thread.

    Args:
        request: The request, which reserves memory for them.
        read: Called with ``short``; see :meth:`Reader.read_each`.
    """
    if request.share.reserve_at_once(MAX_SHORT_BYTES):
        try:
            return await read(short=True)
        except NotShort:
            pass
    return await request.read_in_thread(partial(read, short=False), page=True)


class _RangeResponse(NamedTuple):
    """Range answers, and the response that shows them. False if the request should wait for more."""

    answers: Sequence[RangeAnswer | QueueyError]
    response: Response

    def __bool__(self) -> bool:
        return not are_empty(self.answers)


class RangeViews(Views):
    """Views of ``GET /v1/{app}/{queue}`` and ``POST /v1/{app}/_read``."""

    def __init__(self, authorization: Authorization, limits: Limits, reader: Reader, stream: Handler) -> None:
        super().__init__(authorization, limits)
        self._stream = stream
        self._reader = reader
        self._read_cached_query = Queries(self._read_query).read

    async def read(self, request: Request, match: Match) -> Response:
        """Reads messages of one queue, and waits for some if the request says so.

        Rights are checked again at each attempt.
        """
        if wants_events(request):
            return await self._stream(request, match)
        access = await self._authorization.admit(request, match, "read")
        requested, wait = self._read_cached_query(request)

        async def attempt(waiter: Waiter | None) -> _RangeResponse:
            current = access if waiter is None else await self._authorization.admit(request, match, "read")
            return await read_page(request, partial(self._read_one, RangeSource(current, requested), waiter))

        return (await request.until_found(wait, attempt)).response

    async def _read_one(self, source: RangeSource, waiter: Waiter | None, *, short: bool) -> _RangeResponse:
        results = await self._reader.read_each([source], waiter=waiter, short=short)
        if isinstance(results[0], QueueyError):
            raise results[0]
        return _RangeResponse(results, Response(200, render_range_answer(results[0]), JSON))

    def _read_query(self, request: Request) -> tuple[RangeRequest, float]:
        query = read_query(request, self.fields(RangeQuery).names)
        errors = Errors()
        fields = self.fields(RangeQuery).read(query, errors)
        requested = read_range(fields, query, self._limits, errors)
        errors.check()
        return requested, fields.wait

    async def read_many(self, request: Request, match: Match) -> Response:
        """Reads ranges of several queues. An error of one does not affect the others, but then it does not wait."""
        await self._authorization.require_application(match["app"])
        await self._authorization.identify(request)
        ranges, wait = await request.parse_body(partial(self._read_ranges, request))

        async def attempt(waiter: Waiter | None) -> _RangeResponse:
            names = [name for name, _ in ranges]
            admitted = await self._authorization.admit_to_each(request, match["app"], names)
            return await read_page(request, partial(self._read_each, ranges, admitted, waiter))

        return (await request.until_found(wait, attempt)).response

    def _read_ranges(self, request: Request) -> tuple[Ranges, float]:
        body = self.fields(ManyRanges).json(request)
        if not isinstance(body.get("queues"), list):
            raise bad_json('It has no list "queues"')
        errors = Errors()
        fields = self.fields(ManyRanges).read(body, errors)
        ranges = [self._read_item(item, f"{index}.", errors) for index, item in enumerate(fields.queues or [])]
        errors.check()
        return ranges, fields.wait

    async def _read_each(
        self, ranges: Ranges, admitted: Sequence[QueueAccess | QueueyError], waiter: Waiter | None, *, short: bool
    ) -> _RangeResponse:
        """Reads the queues that the caller may read, and answers with errors for the others.

        If there is an error, the request does not wait for messages.
        """
        if short and len(ranges) > 1:
            raise NotShort
        sources = [
            RangeSource(access, requested) if isinstance(access, QueueAccess) else access
            for (_, requested), access in zip(ranges, admitted, strict=True)
        ]
        readable = [source for source in sources if isinstance(source, RangeSource)]
        # A request with an error for a queue does not wait.
        waiter = waiter if len(readable) == len(sources) else None
        answers = await self._reader.read_each(readable, waiter=waiter, short=short)
        readings = iter(answers)
        results = [source if isinstance(source, QueueyError) else next(readings) for source in sources]
        pieces = [b'{"status":"ok","queues":[']
        for (name, _), result in zip(ranges, results, strict=True):
            if len(pieces) > 1:
                pieces.append(b",")
            pieces += _render_result(name, result)
        pieces.append(b"]}")
        return _RangeResponse(results, Response(200, pieces, JSON))

    def _read_item(self, item: object, prefix: str, errors: Errors) -> tuple[str, RangeRequest]:
        if not isinstance(item, dict):
            errors[prefix[:-1]] = f'"{validators.show(item)}" is not an object'
            return "", RangeRequest()
        item_errors = Errors()
        fields = self.fields(QueueRange).read(item, item_errors)
        requested = read_range(fields, item, self._limits, item_errors)
        errors.include(item_errors, prefix)
        return fields.queue_name, requested


def _render_result(name: str, result: RangeAnswer | QueueyError) -> list[bytes]:
    if isinstance(result, RangeAnswer):
        return render_range_answer(result, name)
    return [encode({"queue_name": name, "status": "error", "error_msg": error_texts(result)})]


# `RangeViews.read`, which may also stream, is declared in `stream_views`.
OPERATIONS = (
    declare(
        MESSAGES_TAG,
        f"POST {APP}/_read",
        "Read several queues",
        ManyRead,
        RangeViews.read_many,
        body=ManyRanges,
        ends_with_client=True,
    ),
)
