"""Views of range reads: of one queue, and of several in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from queuey.api.messages import ManyRanges, QueueRange, RangeFields, RangeQuery
from queuey.errors import QueueyError
from queuey.service import Bound, Limits, QueueAccess, Range, Reading, Service, Source, parse_bound
from queuey.service.reading import SHORT_BYTES, is_fruitless
from queuey.service.watching import Waiter
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.fields import Queries
from queuey.web.requests import Request, read_query
from queuey.web.responses import JSON, Response, body_of, encode
from queuey.web.v1.message_json import render_reading
from queuey.web.v1.views import Views
from queuey.web.validators import Errors, bad_json

Ranges = list[tuple[str, Range]]
"""Names of queues, and what is read of each."""
BOUNDS = ("since", "after", "before", "until")


def _bound(value: object) -> Bound:
    try:
        return parse_bound(validators.text(value))
    except ValueError:
        raise validators.BadField(f'"{validators.show(value)}" is not a message id, an instant or a cursor') from None


def read_partitions(value: object) -> tuple[int, ...] | None:
    """Reads the partitions to read: a comma list, ``*`` for all (None), in JSON also a list."""
    if isinstance(value, list):
        items = [str(item) if isinstance(item, int) else "" for item in value]
    else:
        text = validators.text(value).strip()
        if text == "*":
            return None
        items = text.split(",") if text else []
    numbers = []
    for item in map(str.strip, items):
        if not (item.isascii() and item.isdigit()):
            raise validators.BadField(f'"{validators.show(value)}" is not a list of partitions')
        # A number too long to be a partition is as empty as any other that does not exist.
        numbers.append(int(item) if len(item) < 5 else 0)  # noqa: PLR2004
    return tuple(numbers)


def take_partitions(named: object, errors: Errors, otherwise: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Reads the partitions to read; None: all. Bad ones are in ``errors``."""
    if named is None:
        return otherwise
    try:
        return read_partitions(named)
    except ValueError as error:
        errors["partitions"] = str(error)
        return otherwise


def read_range(asked: RangeFields, given: Mapping[str, Any], limits: Limits, errors: Errors) -> Range:
    """Reads the positions and flags of a range; bad fields are in ``errors``."""
    since, after, before, until = (errors.take(name, _bound, getattr(asked, name)) for name in BOUNDS)
    # Blank text names no partition.
    partitions = take_partitions(given.get("partitions"), errors, (1,))
    delayed = validators.boolean(asked.delay)
    early, early_after = _early(asked.early, errors)
    descending = asked.order == "descending"
    if early and (descending or not delayed):
        errors["early"] = "Early messages follow an ascending read that keeps the read delay"
    return Range(
        partitions=partitions,
        limit=asked.limit or limits.default_limit,
        descending=descending,
        since=since,
        after=after,
        before=before,
        until=until,
        delayed=delayed,
        early=early,
        early_after=early_after,
        merge=validators.boolean(asked.merge),
    )


def _early(value: object, errors: Errors) -> tuple[bool, Bound]:
    """Reads whether early messages are asked for, and above which."""
    if isinstance(value, str) and (":" in value or len(value.strip()) == 32):  # noqa: PLR2004 - digits of an id
        return True, errors.take("early", _bound, value)
    return validators.boolean(value), None


class _Answer(NamedTuple):
    """Readings and the response that shows them; false if there is nothing to answer yet."""

    readings: Sequence[Reading | QueueyError]
    response: Response

    def __bool__(self) -> bool:
        return not is_fruitless(self.readings)


class RangeViews(Views):
    """Views of ``GET /v1/{app}/{queue}`` and ``POST /v1/{app}/_read``."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        super().__init__(service, authorization)
        self._asked = Queries(self._read_query).read

    async def read(self, request: Request, match: Match) -> Response:
        """Reads a range of one queue, and waits for messages if it is to."""
        authorization = self._authorization
        access = authorization.admit_at_once(request, match, "read")
        if access is None:
            access = await authorization.admit(request, match, "read")
        wanted, wait = self._asked(request)
        reader = self._service.reader

        async def attempt(waiter: Waiter | None) -> _Answer:
            current, reading = access, None
            if waiter is not None:
                current = await self._authorization.admit(request, match, "read")
            if request.reserve_at_once(SHORT_BYTES):
                reading = await current.apply(lambda queue: reader.read_short(queue, wanted, waiter))
            if reading is not None:
                return _shown(reading)
            return await request.in_pool(
                lambda: _shown(reader.read(current, wanted, waiter=waiter)), computes=True, page=True
            )

        return (await request.until_found(wait, attempt)).response

    def _read_query(self, request: Request) -> tuple[Range, float]:
        """Returns the range that the query asks for, and the seconds to wait for messages."""
        given = read_query(request, self.fields(RangeQuery).names)
        errors = Errors()
        asked = self.fields(RangeQuery).read(given, errors)
        wanted = read_range(asked, given, self._limits, errors)
        errors.check()
        return wanted, asked.wait

    async def read_many(self, request: Request, match: Match) -> Response:
        """Reads ranges of several queues; an error of one queue does not keep the rest from being read."""

        def begin() -> tuple[Ranges, float, _Answer | None]:
            ranges, wait = self._ranges(request, match)
            return ranges, wait, None if wait else self._read_each(request, match["app"], ranges, None)

        async def attempt(waiter: Waiter | None) -> _Answer:
            read = partial(self._read_each, request, match["app"], ranges, waiter)
            return await request.in_pool(read, computes=True, page=True)

        ranges, wait, answer = await request.in_pool(begin, computes=True, page=True)
        if answer is None:
            answer = await request.until_found(wait, attempt)
        return answer.response

    def _ranges(self, request: Request, match: Match) -> tuple[Ranges, float]:
        """Returns the queues and ranges that the body asks for, and the seconds to wait for messages."""
        self._service.queues.require_application(match["app"])
        self._authorization.caller(request)
        given = self.fields(ManyRanges).json(request)
        if not isinstance(given.get("queues"), list):
            raise bad_json('It has no list "queues"')
        errors = Errors()
        asked = self.fields(ManyRanges).read(given, errors)
        ranges = [self._wanted(item, f"{index}.", errors) for index, item in enumerate(asked.queues or [])]
        errors.check()
        return ranges, asked.wait

    def _read_each(self, request: Request, application: str, ranges: Ranges, waiter: Waiter | None) -> _Answer:
        """Reads each queue that the caller may read; the others get their errors."""
        sources: list[Source | QueueyError] = []
        for name, wanted in ranges:
            access = self._authorization.enter_to_read(request, application, name)
            sources.append(Source(access, wanted) if isinstance(access, QueueAccess) else access)
        readable = [source for source in sources if isinstance(source, Source)]
        # A request that will get an error does not wait.
        waiter = waiter if len(readable) == len(sources) else None
        found = iter(self._service.reader.read_many(readable, waiter=waiter) if readable else [])
        results = [source if isinstance(source, QueueyError) else next(found) for source in sources]
        pieces = [b'{"status":"ok","queues":[']
        for (name, _), result in zip(ranges, results, strict=True):
            if len(pieces) > 1:
                pieces.append(b",")
            pieces += _rendered(name, result)
        pieces.append(b"]}")
        return _Answer(results, Response(200, body_of(pieces), JSON))

    def _wanted(self, item: object, prefix: str, errors: Errors) -> tuple[str, Range]:
        if not isinstance(item, dict):
            errors[prefix[:-1]] = f'"{validators.show(item)}" is not an object'
            return "", Range()
        own = Errors()
        named = self.fields(QueueRange).read(item, own)
        wanted = read_range(named, item, self._limits, own)
        errors.include(own, prefix)
        return named.queue_name, wanted


def _shown(reading: Reading) -> _Answer:
    return _Answer([reading], Response(200, body_of(render_reading(reading)), JSON))


def _rendered(name: str, result: Reading | QueueyError) -> list[bytes]:
    if isinstance(result, Reading):
        return render_reading(result, name)
    return [encode({"queue_name": name, "status": "error", "error_msg": error_texts(result)})]
