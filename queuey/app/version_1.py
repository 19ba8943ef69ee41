"""Version 1 of the API under ``/v1``, with ``/`` and ``/docs``: everything that the original Queuey served, and more.

It is one include. The views of each room declare their operations; here they become one list, from which the routes and
the OpenAPI document are made.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from queuey import __version__
from queuey.access.operations import APP, QUEUE, Operation
from queuey.app import file_views
from queuey.app.service import App
from queuey.claims import views as claim_views
from queuey.groups import member_views, offset_views
from queuey.messages import message_views, name_views, range_views, read_mark_views, stream_views
from queuey.moves import views as move_views
from queuey.operations import views as operator_views
from queuey.queues import views as queue_views
from queuey.runtime.limits import Limits
from queuey.schedules import views as schedule_views
from queuey.web import openapi, parameters
from queuey.web.endpoint import View

SLASH = "{_:/?}"
ORIGINAL = frozenset({QUEUE, APP, message_views.IDS})
"""Resources that the original Queuey had. They keep its 403 and 404, which its clients expect."""
TAGS = (
    queue_views.QUEUES_TAG,
    message_views.MESSAGES_TAG,
    name_views.NAMES_TAG,
    read_mark_views.UNREAD_TAG,
    claim_views.JOBS_TAG,
    member_views.GROUPS_TAG,
    offset_views.OFFSETS_TAG,
    schedule_views.SCHEDULES_TAG,
    move_views.MOVES_TAG,
    queue_views.ACCESS_TAG,
    file_views.SERVICE_TAG,
    queue_views.OPERATORS_TAG,
)
OPERATIONS: tuple[Operation, ...] = (
    *queue_views.OPERATIONS,
    message_views.POST_MESSAGES,
    *stream_views.OPERATIONS,
    *range_views.OPERATIONS,
    *message_views.OPERATIONS_BY_ID,
    *name_views.OPERATIONS,
    *offset_views.OPERATIONS,
    *member_views.OPERATIONS,
    *read_mark_views.OPERATIONS,
    *claim_views.OPERATIONS,
    *operator_views.OPERATIONS,
    *move_views.OPERATIONS,
    *schedule_views.OPERATIONS,
    *file_views.OPERATIONS,
)
"""All operations, in the order of the OpenAPI document."""
EXAMPLES = msgspec.json.decode(Path(__file__).with_name("examples.json").read_bytes(), type=list[openapi.Example])
"""One request of each operation, in an order in which they can be sent."""


def document(limits: Limits | None = None) -> dict[str, Any]:
    api = openapi.Api(
        title="Queuey",
        version=__version__,
        about=parameters.ABOUT,
        security=parameters.SECURITY,
        path_parameters=parameters.PATH_PARAMETERS,
        strict=parameters.STRICT,
        tags=TAGS,
        operations=OPERATIONS,
        errors=parameters.ERRORS,
        examples=EXAMPLES,
    )
    return openapi.make_document(api, limits or Limits())


def bind_operations(app: App) -> list[tuple[Operation, Callable[..., Any]]]:
    """Returns each operation with its view's method."""
    service, authorization = app.service, app.authorization
    both = authorization, service.limits
    streams = stream_views.StreamViews(*both, service.streams, service.unread, service.queues)
    owners = (
        file_views.FileViews(service.limits, document, on_loopback=app.on_loopback),
        file_views.HelloView(service.store),
        range_views.RangeViews(*both, service.reader, streams.stream_queue),
        streams,
        queue_views.QueueViews(*both, service.queues),
        message_views.MessageViews(*both, service.messages),
        name_views.NameViews(*both, service.names),
        read_mark_views.UnreadViews(*both, service.unread, service.queues),
        claim_views.ClaimViews(*both, service.claims),
        member_views.GroupViews(*both, service.groups),
        offset_views.OffsetViews(*both, service.offsets, service.groups),
        schedule_views.ScheduleViews(*both, service.schedules, service.messages),
        move_views.MoveViews(*both, service.moves),
        operator_views.OperatorViews(*both, service.explaining, service.redriving),
    )
    return [(operation, operation.bind(owners)) for operation in OPERATIONS]


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    views: dict[str, dict[str, View]] = {}
    names: dict[str, str] = {}
    for operation, method in config.registry.app.operations:
        views.setdefault(operation.path, {})[operation.method] = operation.make_view(method)
        names.setdefault(operation.path, f"v1.{operation.resource or operation.last_word}")
    for path in sorted(views, key=_order):
        pattern = path.replace("{queue}", "{queue:[^/_][^/]*}") + SLASH * (path != "/")
        is_original = path in ORIGINAL
        config.add_resource(names[path], pattern, views[path], original=is_original, refuses_unknown=not is_original)


def _order(path: str) -> tuple[bool, list[bool]]:
    """Sorts paths for matching: first a queue, which most requests are for; fixed words before placeholders."""
    return path != QUEUE, ["{" in part for part in path.split("/")]
