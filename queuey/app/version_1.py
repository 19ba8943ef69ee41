"""Version 1 of the API under ``/v1``, with ``/`` and ``/docs``: everything that the original Queuey served, and more.

It is one include with its own views. :mod:`.operations` has the table of operations.
"""

from __future__ import annotations

from typing import Any

from queuey.access.operations import bind_by_path
from queuey.app.file_views import FileViews, HelloView
from queuey.app.operations import APP, CONSUMERS, IDS, MEMBER, NAMED, OPERATIONS, QUEUE, SCHEDULE, document
from queuey.app.parts import App
from queuey.claims.views import ClaimViews
from queuey.groups.member_views import GroupViews
from queuey.groups.offset_views import OffsetViews
from queuey.messages.message_views import MessageViews
from queuey.messages.name_views import NameViews
from queuey.messages.range_views import RangeViews
from queuey.messages.read_mark_views import UnreadViews
from queuey.messages.stream_views import StreamViews
from queuey.model.messages import OPERATORS
from queuey.moves.views import MoveViews
from queuey.operations.explanation_views import ExplanationViews
from queuey.queues.views import QueueViews
from queuey.schedules.views import ScheduleViews

SLASH = "{_:/?}"
ORIGINAL = frozenset({QUEUE, APP, IDS})
"""Resources that the original Queuey had. They keep its 403 and 404, which its clients expect."""
NAMES = {
    "/": "root",
    "/v1": "hello",
    f"/v1/{OPERATORS}": "applications",
    APP: "application",
    APP + "/_claims": "claims_of_several",
    QUEUE + "/read": "mark",
    NAMED: "named",
    QUEUE + "/explain": "explain_queue",
    QUEUE + "/explain/{id}": "explain",
    QUEUE + "/jobs/{ids}": "jobs_by_id",
    SCHEDULE + "/run": "run_schedule",
    APP + "/_groups": "consumer_groups",
    CONSUMERS: "consumer_group",
    MEMBER: "member",
    "/client/queuey.js": "client",
    "/client/queuey.d.ts": "client_types",
}
"""Names of resources in the metrics. All others are named by the last word of their path."""


def name_of(path: str) -> str:
    return f"v1.{NAMES.get(path) or path.rpartition('/')[2].strip('_{}').removesuffix('.json')}"


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    app: App = config.registry.app
    service, authorization = app.service, app.authorization
    both = authorization, service.limits
    ranges = RangeViews(*both, service.reader)
    owners = (
        FileViews(service.limits, document, on_loopback=app.on_loopback),
        HelloView(service.store),
        ranges,
        StreamViews(*both, service.streams, service.unread, service.queues, ranges.read),
        QueueViews(*both, service.queues),
        MessageViews(*both, service.messages),
        NameViews(*both, service.names),
        UnreadViews(*both, service.unread, service.queues),
        ClaimViews(*both, service.claims),
        GroupViews(*both, service.groups),
        OffsetViews(*both, service.offsets, service.groups, service.core),
        ScheduleViews(*both, service.schedules, service.messages),
        MoveViews(*both, service.moves),
        ExplanationViews(*both, service.explaining),
    )
    # Most requests are for a queue, so its path is tried first.
    for path, views in sorted(bind_by_path(OPERATIONS, owners), key=lambda path_and_views: path_and_views[0] != QUEUE):
        pattern = path.replace("{queue}", "{queue:[^/_][^/]*}") + SLASH * (path != "/")
        config.add_resource(name_of(path), pattern, views, original=path in ORIGINAL)
