"""Views of range reads: of one queue, and of several in one call."""

from __future__ import annotations

from typing import Any

from queuey.errors import InvalidRequest, QueueyError
from queuey.service import Bound, Limits, QueueAccess, Range, Reading, Service, Source, parse_bound
from queuey.service.reading import SHORT_BYTES
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.errors import error_texts
from queuey.web.requests import Request, bad_json, read_body, read_object, read_query
from queuey.web.responses import JSON, Response, body_of, encode
from queuey.web.v1.message_json import render_reading
from queuey.web.validators import Errors

ORDERS = ("ascending", "descending")
BOUNDS = ("since", "after", "before", "until")
FIELDS = frozenset({*BOUNDS, "partitions", "limit", "order", "delay", "early", "merge", "wait"})


def _bound(value: object) -> Bound:
    """Reads a position: an id, an instant, or a cursor."""
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


def take_partitions(given: dict[str, Any], errors: Errors, otherwise: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Reads the partitions to read; None: all. What is wrong with them is noted in ``errors``."""
    named = given.get("partitions")
    if named is None:
        return otherwise
    try:
        return read_partitions(named)
    except ValueError as error:
        errors["partitions"] = str(error)
        return otherwise


def read_range(given: dict[str, Any], limits: Limits, errors: Errors) -> Range:
    """Reads what to read; bad fields are noted in ``errors``."""
    since, after, before, until = (errors.take(name, _bound, given.get(name)) for name in BOUNDS)
    partitions = take_partitions(given, errors, (1,))
    limit = errors.take("limit", validators.integer, given.get("limit"), 1, limits.max_limit)
    order = errors.take("order", validators.one_of, given.get("order"), ORDERS)
    delay = given.get("delay")
    delayed = delay is None or delay == "" or validators.boolean(delay)
    early, early_after = _early(given.get("early"), errors)
    if early and (order == "descending" or not delayed):
        errors["early"] = "Early messages follow an ascending read that keeps the read delay"
    merge = given.get("merge")
    return Range(
        partitions=partitions,
        limit=limit or limits.default_limit,
        descending=order == "descending",
        since=since,
        after=after,
        before=before,
        until=until,
        delayed=delayed,
        early=early,
        early_after=early_after,
        merge=merge is not None and validators.boolean(merge),
    )


def _early(value: object, errors: Errors) -> tuple[bool, Bound]:
    """Reads whether early messages are asked for, and above which."""
    if isinstance(value, str) and (":" in value or len(value.strip()) == 32):  # noqa: PLR2004 - digits of an id
        return True, errors.take("early", _bound, value)
    return validators.boolean(value), None


class RangeViews:
    """Views of ``GET /v1/{app}/{queue}`` and ``POST /v1/{app}/_read``."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._reader = service.reader
        self._limits = service.limits
        self._authorization = authorization

    async def read(self, request: Request, match: Match) -> Response:
        """Reads a range of one queue: a short one at once if the store can, any other in a thread."""
        access = await self._authorization.admit(request, match, "read")
        wanted, wait = self._asked(request)
        reading = None
        if request.reserve_at_once(SHORT_BYTES):
            reading = await access.apply(lambda queue: self._reader.read_short(queue, wanted, wait, request.poll))
        if reading is not None:
            return _shown(reading)
        return await request.in_thread(
            lambda: _shown(self._reader.read(access, wanted, wait, waiter=request.poll)), computes=True, page=True
        )

    def _asked(self, request: Request) -> tuple[Range, float]:
        """Reads what the query asks for, and for how many seconds to wait for it."""
        given = read_query(request, FIELDS)
        if not given:
            return Range(limit=self._limits.default_limit), 0.0
        errors = Errors()
        wanted = read_range(given, self._limits, errors)
        wait = errors.take("wait", validators.decimal, given.get("wait"), 0, self._limits.max_wait) or 0.0
        errors.check()
        return wanted, wait

    def read_many(self, request: Request, match: Match) -> Response:
        """Reads ranges of several queues; an error of one queue does not keep the rest from being read."""
        self._service.queues.require_application(match["app"])
        self._authorization.caller(request)
        given = read_object(read_body(request, self._limits.max_body))
        asked = given.get("queues")
        if not isinstance(asked, list):
            raise bad_json('It has no list "queues"')
        if len(asked) > self._limits.max_queues_per_read:
            raise InvalidRequest({"queues": f"Longer than maximum length {self._limits.max_queues_per_read}"})
        errors = Errors()
        wait = errors.take("wait", validators.decimal, given.get("wait"), 0, self._limits.max_wait) or 0.0
        ranges = [self._wanted(item, f"{index}.", errors) for index, item in enumerate(asked)]
        errors.check()
        sources: list[Source | QueueyError] = []
        for name, wanted in ranges:
            access = self._authorization.enter_to_read(request, match["app"], name)
            sources.append(Source(access, wanted) if isinstance(access, QueueAccess) else access)
        readable = [source for source in sources if isinstance(source, Source)]
        # A request that would get an error at once does not wait.
        wait = wait if len(readable) == len(sources) else 0.0
        found = iter(self._reader.read_many(readable, wait, waiter=request.poll) if readable else [])
        pieces = [b'{"status":"ok","queues":[']
        for (name, _), source in zip(ranges, sources, strict=True):
            result = source if isinstance(source, QueueyError) else next(found)
            if len(pieces) > 1:
                pieces.append(b",")
            pieces += _rendered(name, result)
        pieces.append(b"]}")
        return Response(200, body_of(pieces), JSON)

    def _wanted(self, item: object, prefix: str, errors: Errors) -> tuple[str, Range]:
        """Reads one queue of several; its bad fields are noted with their index."""
        if not isinstance(item, dict):
            errors[prefix[:-1]] = f'"{validators.show(item)}" is not an object'
            return "", Range()
        own = Errors()
        name = own.take("queue_name", validators.text, item.get("queue_name"))
        if name is None:
            own.setdefault("queue_name", validators.REQUIRED)
        wanted = read_range(item, self._limits, own)
        errors.update({prefix + field: text for field, text in own.items()})
        return name or "", wanted


def _shown(reading: Reading) -> Response:
    return Response(200, body_of(render_reading(reading)), JSON)


def _rendered(name: str, result: Reading | QueueyError) -> list[bytes]:
    if isinstance(result, Reading):
        return render_reading(result, name)
    return [encode({"queue_name": name, "status": "error", "error_msg": error_texts(result)})]
