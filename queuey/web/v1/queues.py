"""Views of queues themselves: create, list, update, delete, purge, info."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from queuey import ids
from queuey.access import VERBS, format_principal, parse_principals
from queuey.deadletters import queue_for
from queuey.errors import InvalidRequest
from queuey.messages import (
    CONSISTENCIES,
    KINDS,
    MAX_CLAIMED,
    MAX_CLAIMED_PER_KEY,
    MAX_DELIVERIES,
    MAX_TTL,
    ON_ACK,
    TYPES,
    Backoff,
    Principal,
    Queue,
    QueueSpec,
)
from queuey.partitions import MAX_PARTITIONS
from queuey.service import Limits, Service
from queuey.web import validators
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_body, read_fields, read_object, read_query
from queuey.web.responses import Response, json_response
from queuey.web.v1 import schemas
from queuey.web.v1.message_json import horizon_id
from queuey.web.validators import Errors

MAX_READ_DELAY = 3600
PAGE_FIELDS = frozenset({"limit", "offset"})
LIST_FIELDS = PAGE_FIELDS | {"details", "include_count"}
RESETTABLE = ("principals", "ttl", "read_delay", "max_deliveries", "backoff", "dead_letter", "on_ack", "max_claimed")


def _principals(value: object, most: int) -> tuple[Principal, ...]:
    """Reads a comma list or a JSON list of principals."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise validators.BadField(f'"{validators.show(value)}" is not a list of principals')
    if len(items) > most:
        raise validators.BadField(f"Longer than maximum length {most}")
    return parse_principals(items)


def _backoff(value: object) -> Backoff:
    """Reads delays: an object, or text such as ``first=5,most=600``."""
    if isinstance(value, str):
        value = {name.strip(): number.strip() for name, _, number in (pair.partition("=") for pair in value.split(","))}
    try:
        return msgspec.convert(value, Backoff, strict=False)
    except msgspec.ValidationError as error:
        raise validators.BadField(str(error)) from error


def read_spec(given: dict[str, Any], errors: Errors, limits: Limits) -> QueueSpec:
    """Reads what is given about a queue; the old spelling ``principles`` and the right one mean the same."""
    old = errors.take("principles", _principals, given.get("principles"), limits.max_principals)
    new = errors.take("principals", _principals, given.get("principals"), limits.max_principals)
    if old is not None and new is not None and old != new:
        errors["principals"] = "Differs from principles"
    return QueueSpec(
        partitions=errors.take("partitions", validators.integer, given.get("partitions"), 1, MAX_PARTITIONS),
        type=errors.take("type", validators.one_of, given.get("type"), TYPES),
        consistency=errors.take("consistency", validators.one_of, given.get("consistency"), CONSISTENCIES),
        principals=old if new is None else new,
        ttl=errors.take("ttl", validators.integer, given.get("ttl"), 1, MAX_TTL),
        read_delay=errors.take("read_delay", validators.decimal, given.get("read_delay"), 0, MAX_READ_DELAY),
        max_deliveries=errors.take(
            "max_deliveries", validators.integer, given.get("max_deliveries"), 0, MAX_DELIVERIES
        ),
        backoff=errors.take("backoff", _backoff, given.get("backoff")),
        dead_letter=errors.take("dead_letter", validators.text, given.get("dead_letter")),
        on_ack=errors.take("on_ack", validators.one_of, given.get("on_ack"), ON_ACK),
        kind=errors.take("kind", validators.one_of, given.get("kind"), KINDS),
        max_claimed=errors.take("max_claimed", validators.integer, given.get("max_claimed"), 0, MAX_CLAIMED),
        max_claimed_per_key=errors.take(
            "max_claimed_per_key", validators.integer, given.get("max_claimed_per_key"), 0, MAX_CLAIMED_PER_KEY
        ),
    )


def _resets(given: dict[str, Any]) -> list[str]:
    """Returns the fields given as null, under their own names."""
    names = {name for name, value in given.items() if value is None}
    if "principles" in names:
        names.add("principals")
    return [name for name in RESETTABLE if name in names]


def _principal_text(queue: Queue) -> str | None:
    return ",".join(map(format_principal, queue.principals)) or None


def _state(queue: Queue) -> dict[str, Any]:
    """Returns the fields of :class:`schemas.QueueState`, which have the names of the queue's own."""
    shared = (name for name in schemas.QueueState.__struct_fields__ if hasattr(queue, name))
    return {"queue_name": queue.name, **{name: getattr(queue, name) for name in shared}}


def _listed(queue: Queue, count: int | None) -> schemas.ListedQueue:
    """Returns a queue with all details."""
    return schemas.ListedQueue(
        queue_name=queue.name,
        application=queue.application,
        created=queue.created,
        partitions=queue.partitions,
        type=queue.type,  # type: ignore[arg-type] # the catalogue holds only these words
        consistency=queue.consistency,  # type: ignore[arg-type]
        principles=_principal_text(queue) or UNSET,
        ttl=UNSET if queue.ttl is None else queue.ttl,
        read_delay=UNSET if queue.read_delay is None else queue.read_delay,
        max_deliveries=queue.max_deliveries or UNSET,
        backoff=queue.backoff or UNSET,
        dead_letter=queue.dead_letter or UNSET,
        on_ack=UNSET if queue.on_ack == ON_ACK[0] else queue.on_ack,  # type: ignore[arg-type]
        kind=UNSET if queue.kind == KINDS[0] else queue.kind,  # type: ignore[arg-type]
        max_claimed=queue.max_claimed or UNSET,
        max_claimed_per_key=queue.max_claimed_per_key or UNSET,
        count=UNSET if count is None else count,
    )


def _fits(name: object, longest: int) -> bool:
    return isinstance(name, str) and len(name) <= longest


class QueueViews:
    """Views of ``/v1/{app}``, of a queue's row, and of ``messages`` and ``info`` under it."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        self._service = service
        self._queues = service.queues
        self._limits = service.limits
        self._authorization = authorization

    def create(self, request: Request, match: Match) -> Response:
        """Creates a queue, or finds the one that has every field given."""
        check = self._authorization.creation(request, match["app"])
        given = read_fields(request, self._limits.max_body)
        errors = Errors()
        name = errors.take("queue_name", validators.text, given.get("queue_name"))
        spec = read_spec(given, errors, self._limits)
        errors.check()
        check(name or "*")
        self._authorization.require_dead_letter(request, match["app"], name, spec.dead_letter)
        queue, created = self._queues.create(match["app"], name, spec)
        response = schemas.CreatedQueue(**_state(queue), principles=_principal_text(queue))
        return json_response(response, 201 if created else 200)

    def list(self, request: Request, match: Match) -> Response:
        """Lists queues by name."""
        patterns = self._authorization.patterns(request, match["app"], "measure")
        given = read_query(request, LIST_FIELDS)
        start, limit = self._page(given)
        with_count = validators.boolean(given.get("include_count", ""))
        details = with_count or validators.boolean(given.get("details", ""))
        queues, following = self._queues.list(match["app"], start=start, limit=limit, patterns=patterns)
        items = []
        for queue in queues:
            count = self._queues.count(queue) if with_count else None
            if with_count and count is None:
                continue
            items.append(_listed(queue, count) if details else schemas.ListedQueue(queue_name=queue.name))
        return json_response(schemas.QueueList(queues=items, next=following, patterns=list(patterns)))

    def rights(self, request: Request, match: Match) -> Response:
        """Returns what the caller may do with queues of these names."""
        self._queues.require_application(match["app"])
        self._authorization.caller(request)
        names = read_object(read_body(request, self._limits.max_body)).get("queues")
        most, longest = self._limits.max_queues_per_read, schemas.LONGEST_ASKED
        if not isinstance(names, list) or len(names) > most or not all(_fits(name, longest) for name in names):
            raise InvalidRequest({"queues": f"Not a list of at most {most} names of at most {longest} characters"})
        rights = [schemas.QueueRights(name, self._authorization.rights(request, match["app"], name)) for name in names]
        return json_response(schemas.Rights(queues=rights))

    def me(self, request: Request, match: Match) -> Response:
        """Returns who the caller is here, and what its credentials let it do."""
        self._queues.require_application(match["app"])
        caller = self._authorization.caller(request)
        rights = [
            schemas.OwnRights(
                allow=[verb for verb in VERBS if verb in grant.allow],
                queues=[grant.queues] if isinstance(grant.queues, str) else UNSET,
                patterns=UNSET if isinstance(grant.queues, str) else list(grant.queues),
            )
            for grant in caller.grants_within(match["app"])
        ]
        names = caller.names_within(match["app"])
        return json_response(schemas.Me(names=names, expires=caller.expires, rights=rights))

    def _page(self, given: dict[str, str]) -> tuple[str, int]:
        """Reads where a listing starts, and how long it may be."""
        errors = Errors()
        limit = errors.take("limit", validators.integer, given.get("limit"), 1, self._limits.max_list)
        errors.check()
        return given.get("offset", ""), limit or self._limits.default_list

    def applications(self, request: Request, match: Match) -> Response:
        """Lists applications by name, for operators."""
        self._authorization.oversee(request)
        start, limit = self._page(read_query(request, PAGE_FIELDS))
        names, following = self._queues.applications(start=start, limit=limit)
        return json_response(schemas.ApplicationList(applications=list(names), next=following))

    def update(self, request: Request, match: Match) -> Response:
        """Changes the given fields, resets those that are null."""
        access = self._authorization.enter(request, self._authorization.find(request, match), "admin")
        given = read_fields(request, self._limits.max_body)
        errors = Errors()
        spec = read_spec(given, errors, self._limits)
        errors.check()
        access = self._authorization.enter(request, access.queue, "admin", dead_letter=spec.dead_letter)
        queue = self._queues.update(access, spec, _resets(given))
        principles = list(map(format_principal, queue.principals))
        return json_response(schemas.UpdatedQueue(**_state(queue), created=queue.created, principles=principles))

    def delete(self, request: Request, match: Match) -> Response:
        """Deletes the queue with all it has."""
        self._queues.delete(self._authorization.enter(request, self._authorization.find(request, match), "admin"))
        return json_response(schemas.Done())

    def purge(self, request: Request, match: Match) -> Response:
        """Removes all messages."""
        self._queues.purge(self._authorization.enter(request, self._authorization.find(request, match), "admin"))
        return json_response(schemas.Done())

    def info(self, request: Request, match: Match) -> Response:
        """Returns everything about the queue."""
        about = self._queues.describe(
            self._authorization.enter(request, self._authorization.find(request, match), "measure")
        )
        queue = about.queue
        partitions = {
            str(part.partition): schemas.PartitionState(
                count=part.count,
                exact=part.exact,
                oldest=None if part.oldest is None else ids.to_hex(part.oldest),
                newest=None if part.newest is None else ids.to_hex(part.newest),
            )
            for part in about.partitions
        }
        target = queue_for(queue.name, queue.dead_letter)
        in_force = {
            "ttl": about.ttl,
            "read_delay": about.read_delay,
            "backoff": queue.backoff or Backoff(),
            "dead_letter": target,
        }
        return json_response(
            schemas.QueueInfo(
                **_state(queue) | in_force,
                application=queue.application,
                principles=list(map(format_principal, queue.principals)),
                created=queue.created,
                store=about.store,
                guarantee=about.guarantee,
                acknowledgement=schemas.Acknowledged(about.acknowledgement.level, about.acknowledgement.text),
                horizon=horizon_id(about.horizon),
                count=sum(part.count for part in about.partitions),
                exact=all(part.exact for part in about.partitions),
                partition_info=partitions,
            )
        )
