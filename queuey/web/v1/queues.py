"""Views of queues themselves: create, list, update, delete, purge, info."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from queuey import ids
from queuey.access import format_principal, parse_principals
from queuey.messages import CONSISTENCIES, MAX_TTL, TYPES, Principal, Queue, QueueSpec
from queuey.partitions import MAX_PARTITIONS
from queuey.service import Service
from queuey.web import fields
from queuey.web.answers import Answer, Environ, json_answer
from queuey.web.bodies import read_fields, read_query
from queuey.web.endpoint import Match
from queuey.web.fields import Errors
from queuey.web.gate import Gate
from queuey.web.v1 import structs
from queuey.web.v1.render import horizon_id

MAX_READ_DELAY = 3600
LIST_FIELDS = frozenset({"limit", "offset", "details", "include_count"})
RESETTABLE = ("principals", "ttl", "read_delay")


def _principals(value: object, most: int) -> tuple[Principal, ...]:
    """Reads a comma list or a JSON list of principals."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise fields.BadField(f'"{fields.show(value)}" is not a list of principals')
    if len(items) > most:
        raise fields.BadField(f"Longer than maximum length {most}")
    return parse_principals(items)


def _spec(given: dict[str, Any], errors: Errors, most_principals: int) -> QueueSpec:
    """Reads what is given about a queue; the old spelling ``principles`` and the right one mean the same."""
    old = errors.take("principles", _principals, given.get("principles"), most_principals)
    new = errors.take("principals", _principals, given.get("principals"), most_principals)
    if old is not None and new is not None and old != new:
        errors["principals"] = "Differs from principles"
    return QueueSpec(
        partitions=errors.take("partitions", fields.integer, given.get("partitions"), 1, MAX_PARTITIONS),
        type=errors.take("type", fields.one_of, given.get("type"), TYPES),
        consistency=errors.take("consistency", fields.one_of, given.get("consistency"), CONSISTENCIES),
        principals=old if new is None else new,
        ttl=errors.take("ttl", fields.integer, given.get("ttl"), 1, MAX_TTL),
        read_delay=errors.take("read_delay", fields.decimal, given.get("read_delay"), 0, MAX_READ_DELAY),
    )


def _resets(given: dict[str, Any]) -> list[str]:
    """Returns the fields given as null, under their own names."""
    names = {name for name, value in given.items() if value is None}
    if "principles" in names:
        names.add("principals")
    return [name for name in RESETTABLE if name in names]


def _principal_text(queue: Queue) -> str | None:
    return ",".join(map(format_principal, queue.principals)) or None


def _listed(queue: Queue, count: int | None) -> structs.ListedQueue:
    """Returns a queue with all details."""
    return structs.ListedQueue(
        queue_name=queue.name,
        application=queue.application,
        created=queue.created,
        partitions=queue.partitions,
        type=queue.type,  # type: ignore[arg-type] # the catalogue holds only these words
        consistency=queue.consistency,  # type: ignore[arg-type]
        principles=_principal_text(queue) or UNSET,
        ttl=UNSET if queue.ttl is None else queue.ttl,
        read_delay=UNSET if queue.read_delay is None else queue.read_delay,
        count=UNSET if count is None else count,
    )


class QueueViews:
    """Views of ``/v1/{app}``, of a queue's row, and of ``messages`` and ``info`` under it."""

    def __init__(self, service: Service, gate: Gate) -> None:
        self._service = service
        self._queues = service.queues
        self._limits = service.limits
        self._gate = gate

    def create(self, environ: Environ, match: Match) -> Answer:
        """Creates a queue, or finds the one that has every field given."""
        self._gate.own(environ, match["app"])
        given = read_fields(environ, self._limits.max_body)
        errors = Errors()
        name = errors.take("queue_name", fields.text, given.get("queue_name"))
        spec = _spec(given, errors, self._limits.max_principals)
        errors.check()
        queue, created = self._queues.create(match["app"], name, spec)
        answer = structs.CreatedQueue(
            queue_name=queue.name,
            partitions=queue.partitions,
            type=queue.type,  # type: ignore[arg-type]
            consistency=queue.consistency,  # type: ignore[arg-type]
            principles=_principal_text(queue),
            ttl=queue.ttl,
            read_delay=queue.read_delay,
        )
        return json_answer(answer, 201 if created else 200)

    def list(self, environ: Environ, match: Match) -> Answer:
        """Lists queues by name."""
        self._gate.own(environ, match["app"])
        given = read_query(environ, LIST_FIELDS)
        errors = Errors()
        limit = errors.take("limit", fields.integer, given.get("limit"), 1, self._limits.max_list)
        errors.check()
        with_count = fields.boolean(given.get("include_count", ""))
        details = with_count or fields.boolean(given.get("details", ""))
        queues, following = self._queues.list(
            match["app"], start=given.get("offset", ""), limit=limit or self._limits.default_list
        )
        items = []
        for queue in queues:
            count = self._queues.count(queue) if with_count else None
            if with_count and count is None:
                continue
            items.append(_listed(queue, count) if details else structs.ListedQueue(queue_name=queue.name))
        return json_answer(structs.QueueList(queues=items, next=following))

    def update(self, environ: Environ, match: Match) -> Answer:
        """Changes what is given, resets what is null."""
        entry = self._gate.enter(environ, self._gate.find(match), "manage")
        given = read_fields(environ, self._limits.max_body)
        errors = Errors()
        spec = _spec(given, errors, self._limits.max_principals)
        errors.check()
        queue = self._queues.update(entry, spec, _resets(given))
        return json_answer(
            structs.UpdatedQueue(
                queue_name=queue.name,
                partitions=queue.partitions,
                created=queue.created,
                principles=[format_principal(principal) for principal in queue.principals],
                type=queue.type,  # type: ignore[arg-type]
                consistency=queue.consistency,  # type: ignore[arg-type]
                ttl=queue.ttl,
                read_delay=queue.read_delay,
            )
        )

    def delete(self, environ: Environ, match: Match) -> Answer:
        """Deletes the queue with all it has."""
        self._queues.delete(self._gate.enter(environ, self._gate.find(match), "manage"))
        return json_answer(structs.Done())

    def purge(self, environ: Environ, match: Match) -> Answer:
        """Removes all messages."""
        self._queues.purge(self._gate.enter(environ, self._gate.find(match), "manage"))
        return json_answer(structs.Done())

    def info(self, environ: Environ, match: Match) -> Answer:
        """Tells everything about the queue."""
        about = self._queues.describe(self._gate.enter(environ, self._gate.find(match), "read"))
        queue = about.queue
        partitions = {
            str(part.partition): structs.PartitionState(
                count=part.count,
                exact=part.exact,
                oldest=None if part.oldest is None else ids.to_hex(part.oldest),
                newest=None if part.newest is None else ids.to_hex(part.newest),
            )
            for part in about.partitions
        }
        return json_answer(
            structs.QueueInfo(
                queue_name=queue.name,
                application=queue.application,
                partitions=queue.partitions,
                type=queue.type,  # type: ignore[arg-type]
                consistency=queue.consistency,  # type: ignore[arg-type]
                principles=[format_principal(principal) for principal in queue.principals],
                ttl=about.ttl,
                read_delay=about.read_delay,
                created=queue.created,
                store=about.store,
                guarantee=about.guarantee,
                acknowledgement=structs.Acknowledged(about.acknowledgement.level, about.acknowledgement.text),
                horizon=horizon_id(about.horizon),
                count=sum(part.count for part in about.partitions),
                exact=all(part.exact for part in about.partitions),
                partition_info=partitions,
            )
        )
