"""Views of queues: create, list, update, delete, purge and describe; also of rights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import fields

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, QUEUE, Views, declare, json_answers
from queuey.access.queue_access import QueueAccess
from queuey.api import queues as api
from queuey.api.values import Done
from queuey.model.errors import InvalidRequest
from queuey.model.messages import (
    OPERATORS,
    RESETTABLE,
    Backoff,
    ChosenOptions,
    Principal,
    Queue,
    QueueOptions,
    QueueSpec,
)
from queuey.model.rights import VERBS, format_principal, parse_principals
from queuey.queues.queues import Queues
from queuey.runtime.limits import Limits
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.fields import Fields
from queuey.web.openapi import JSON, Tag
from queuey.web.parameters import FORM
from queuey.web.requests import Request, read_fields
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors

OPTION_DEFAULTS = {option.name: option.default for option in fields(ChosenOptions)}
ALWAYS_LISTED_OPTIONS = ("partitions", "type", "consistency")
"""Options that a listing with details has even if they are the defaults."""


def _read_principals(value: object, max_principals: int) -> tuple[Principal, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise validators.BadField(f'"{validators.show(value)}" is not a list of principals')
    if len(items) > max_principals:
        raise validators.BadField(f"Longer than maximum length {max_principals}")
    return parse_principals(items)


def _read_backoff(value: object) -> Backoff:
    if isinstance(value, str):
        value = {name.strip(): number.strip() for name, _, number in (pair.partition("=") for pair in value.split(","))}
    try:
        return msgspec.convert(value, Backoff, strict=False)
    except msgspec.ValidationError as error:
        raise validators.BadField(str(error)) from error


@cache
def _make_fields(limits: Limits) -> Fields[api.QueueOptionFields]:
    return Fields(api.QueueOptionFields, limits)


def read_spec(values: Mapping[str, Any], errors: Errors, limits: Limits) -> QueueSpec:
    """Reads the options of a queue. Puts bad ones into ``errors``.

    ``principles`` is an old misspelling of ``principals``, and has the same effect; both are an error if they differ.
    """
    requested = _make_fields(limits).read(values, errors)
    old = errors.parse_field("principles", _read_principals, requested.principles, limits.max_principals)
    new = errors.parse_field("principals", _read_principals, requested.principals, limits.max_principals)
    if old is not None and new is not None and old != new:
        errors["principals"] = "Differs from principles"
    options = {name: getattr(requested, name) for name in QueueOptions.__struct_fields__}
    backoff = errors.parse_field("backoff", _read_backoff, requested.backoff)
    return QueueSpec(**options | {"backoff": backoff}, principals=old if new is None else new)


def _find_resets(body: dict[str, Any]) -> list[str]:
    options = {name for name, value in body.items() if value is None}
    if "principles" in options:
        options.add("principals")
    return [name for name in RESETTABLE if name in options]


def _format_principals(queue: Queue) -> str | None:
    return ",".join(map(format_principal, queue.principals)) or None


def _show_options(queue: Queue) -> dict[str, Any]:
    return {"name": queue.name, **{name: getattr(queue, name) for name in OPTION_DEFAULTS}}


def _show_listed(queue: Queue, count: int | None) -> Any:  # noqa: ANN401 - an api.ListedQueue
    options = {name: value for name, default in OPTION_DEFAULTS.items() if (value := getattr(queue, name)) != default}
    return api.ListedQueue(
        queue_name=queue.name,
        application=queue.application,
        created=queue.created,
        principles=_format_principals(queue) or UNSET,
        count=UNSET if count is None else count,
        **{name: getattr(queue, name) for name in ALWAYS_LISTED_OPTIONS} | options,
    )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= api.MAX_REQUESTED_NAME


class QueueViews(Views):
    """Views of ``/v1/{app}`` with rights and caller, and of a queue with its ``messages`` and ``info``."""

    def __init__(self, authorization: Authorization, limits: Limits, queues: Queues) -> None:
        super().__init__(authorization, limits)
        self._queues = queues

    async def create(self, request: Request, match: Match) -> Response:
        """Creates a queue (201), or returns the existing one if it has all given options (200). Needs ``admin``.

        A queue without a name gets a random one. Another dead-letter queue than its own needs ``send`` or ``admin``
        there.
        """
        check = await self._authorization.make_creation_check(request, match["app"])
        body = read_fields(request, self._limits.max_body)
        self.fields(api.NewQueue).record_unknown_names(request, body)
        errors = Errors()
        name = errors.parse_field("queue_name", validators.parse_text, body.get("queue_name"))
        spec = read_spec(body, errors, self._limits)
        errors.check()
        check(name or "*")
        await self._authorization.require_dead_letter(request, match["app"], name, spec.dead_letter)
        queue, created = await self._queues.create(match["app"], name, spec)
        response = api.CreatedQueueState(**_show_options(queue), principles=_format_principals(queue))
        return json_response(response, 201 if created else 200)

    async def list(self, request: Request, match: Match) -> Response:
        """Lists a page of the queues that the caller may measure, by name alone unless details are requested.

        With counts, a queue that was deleted meanwhile is left out.
        """
        patterns = await self._authorization.patterns(request, match["app"], "measure")
        query = self.fields(api.QueueListQuery).query(request)
        details = query.include_count or query.details
        limit = query.limit or self._limits.default_list

        async def read() -> Response:
            queues, following = await self._queues.list(
                match["app"], start=query.offset, limit=limit, patterns=patterns
            )
            items = []
            for queue in queues:
                count = await self._queues.count(queue) if query.include_count else None
                if query.include_count and count is None:
                    continue
                items.append(_show_listed(queue, count) if details else api.ListedQueue(queue_name=queue.name))
            return json_response(api.QueueList(queues=items, next=following, patterns=list(patterns)))

        return await request.read_in_thread(read)

    async def rights(self, request: Request, match: Match) -> Response:
        """Shows the caller's rights on the queues in the body, whether they exist or not."""
        await self._authorization.require_application(match["app"])
        await self._authorization.identify(request)
        names = self.fields(api.RightsAsked).json(request).get("queues")
        max_names = self._limits.max_queues_per_read
        if not isinstance(names, list) or len(names) > max_names or not all(map(_is_name, names)):
            text = f"Is not a list of at most {max_names} names of at most {api.MAX_REQUESTED_NAME} characters"
            raise InvalidRequest({"queues": text})
        list_rights = partial(self._authorization.list_rights, request, match["app"])
        rights = [api.QueueRights(name, await list_rights(name)) for name in names]
        return json_response(api.Rights(queues=rights))

    async def me(self, request: Request, match: Match) -> Response:
        await self._authorization.require_application(match["app"])
        caller = await self._authorization.identify(request)
        rights = [
            api.OwnRights(
                allow=[verb for verb in VERBS if verb in grant.allow],
                queues=[grant.queues] if isinstance(grant.queues, str) else UNSET,
                patterns=UNSET if isinstance(grant.queues, str) else list(grant.queues),
            )
            for grant in caller.grants_within(match["app"])
        ]
        names = caller.names_within(match["app"])
        return json_response(api.Me(names=names, expires=caller.expires, rights=rights))

    async def applications(self, request: Request, match: Match) -> Response:
        await self._authorization.require_operator(request)
        query = self.fields(api.ListQuery).query(request)
        limit = query.limit or self._limits.default_list
        names, following = await self._queues.list_applications(start=query.offset, limit=limit)
        return json_response(api.ApplicationList(applications=list(names), next=following))

    async def update(self, request: Request, match: Match) -> Response:
        """Changes the given options; the others stay. A null resets an option. Needs ``admin``.

        Another dead-letter queue than its own or the present one needs ``send`` or ``admin`` there.
        """
        access = await self._authorization.admit(request, match, "admin")
        body = read_fields(request, self._limits.max_body)
        self.fields(api.QueueOptionFields).record_unknown_names(request, body)
        errors = Errors()
        spec = read_spec(body, errors, self._limits)
        errors.check()
        access = await self._authorization.admit(request, match, "admin", dead_letter=spec.dead_letter)
        queue = await self._queues.update(access, spec, _find_resets(body))
        principles = list(map(format_principal, queue.principals))
        return json_response(api.UpdatedQueue(**_show_options(queue), created=queue.created, principles=principles))

    async def delete(self, access: QueueAccess) -> None:
        await self._queues.delete(access)

    async def purge(self, access: QueueAccess) -> None:
        await self._queues.purge(access)

    async def info(self, access: QueueAccess) -> api.QueueInfo:
        return await self._queues.describe(access)


QUEUES_TAG = Tag("Queues", "Create queues, set their options, and see what they hold.")
ACCESS_TAG = Tag("Access", "Who the caller is, and what it may do.")
OPERATORS_TAG = Tag("Operators", "For operators of the service, with a key of `@all`.")
OPERATIONS = (
    declare(
        QUEUES_TAG,
        f"POST {APP}",
        "Create queue",
        json_answers(api.CreatedQueueState, 201, 200),
        QueueViews.create,
        body={JSON: api.NewQueue, FORM: api.NewQueue},
        body_may_be_empty=True,
        further_errors=(409,),
        resource="application",
    ),
    declare(QUEUES_TAG, f"GET {APP}", "List queues", api.QueueList, QueueViews.list, query=api.QueueListQuery),
    declare(ACCESS_TAG, f"GET {APP}/_me", "Describe caller", api.Me, QueueViews.me),
    declare(
        ACCESS_TAG,
        f"POST {APP}/_rights",
        "List rights, of the caller in queues",
        api.Rights,
        QueueViews.rights,
        body=api.RightsAsked,
    ),
    declare(
        QUEUES_TAG,
        f"PUT {QUEUE}",
        "Update queue",
        api.UpdatedQueue,
        QueueViews.update,
        body={JSON: api.QueueOptionFields, FORM: api.QueueOptionFields},
        body_may_be_empty=True,
    ),
    declare(
        QUEUES_TAG,
        f"DELETE {QUEUE}",
        "Delete queue",
        Done,
        QueueViews.delete,
        "admin",
        about="Deletes the queue with all messages, its options, and the offsets of its groups.",
    ),
    declare(
        QUEUES_TAG,
        f"DELETE {QUEUE}/messages",
        "Purge queue",
        Done,
        QueueViews.purge,
        "admin",
        about="Removes all messages, including those that are not due yet. Options and offsets of groups stay.",
    ),
    declare(QUEUES_TAG, f"GET {QUEUE}/info", "Describe queue", api.QueueInfo, QueueViews.info, "measure"),
    declare(
        OPERATORS_TAG,
        f"GET /v1/{OPERATORS}",
        "List applications, for operators",
        api.ApplicationList,
        QueueViews.applications,
        query=api.ListQuery,
        resource="applications",
    ),
)
