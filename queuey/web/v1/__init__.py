"""Version 1 of the API: everything the original Queuey served, and more, under ``/v1``, with ``/`` and ``/docs``.

One include, which owns its routes, its views and its OpenAPI document (:mod:`.spec`).
"""

from __future__ import annotations

from typing import Any

from queuey.messages import OPERATORS
from queuey.service import Service
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Handler, View
from queuey.web.v1.claims import ClaimViews
from queuey.web.v1.explain import ExplainView
from queuey.web.v1.files import FileViews
from queuey.web.v1.hello import HelloView
from queuey.web.v1.messages import MessageViews
from queuey.web.v1.moves import MoveViews
from queuey.web.v1.names import NameViews
from queuey.web.v1.offsets import OffsetViews
from queuey.web.v1.queues import QueueViews
from queuey.web.v1.ranges import RangeViews
from queuey.web.v1.schedules.views import ScheduleViews
from queuey.web.v1.streams import StreamViews
from queuey.web.v1.unread import UnreadViews

SLASH = "{_:/?}"
APP = "/v1/{app}"
QUEUE = APP + "/{queue:[^/_][^/]*}"
ORIGINAL = frozenset({"v1.queue", "v1.application", "v1.ids"})
"""The resources that the original had, too: its clients know their 403 and 404."""


def resources(
    service: Service, authorization: Authorization, files: FileViews
) -> list[tuple[str, str, dict[str, View | Handler]]]:
    """Returns name, pattern and views of every resource, in the order of matching."""
    messages, ranges = MessageViews(service, authorization), RangeViews(service, authorization)
    moves = MoveViews(service, authorization)
    queues, offsets, hello = QueueViews(service, authorization), OffsetViews(service, authorization), HelloView(service)
    streams, unread = StreamViews(service, authorization, ranges.read), UnreadViews(service, authorization)
    names, explain = NameViews(service, authorization), ExplainView(service, authorization)
    return [
        (
            "v1.queue",
            QUEUE,
            {
                "POST": messages.post,
                "GET": View(streams.read, asks=True, reads=True),
                "PUT": queues.update,
                "DELETE": queues.delete,
            },
        ),
        ("v1.root", "/", {"GET": hello.show}),
        ("v1.hello", "/v1", {"GET": hello.show}),
        *_of_files(files),
        ("v1.applications", f"/v1/{OPERATORS}", {"GET": View(queues.applications, asks=True)}),
        ("v1.application", APP, {"POST": queues.create, "GET": View(queues.list, asks=True)}),
        ("v1.read", APP + "/_read", {"POST": View(ranges.read_many, reads=True)}),
        (
            "v1.stream",
            APP + "/_stream",
            dict.fromkeys(("GET", "POST"), View(streams.many, asks=True, reads=True)),
        ),
        ("v1.unread", APP + "/_unread", {"POST": View(unread.count, page=True)}),
        ("v1.me", APP + "/_me", {"GET": queues.me}),
        ("v1.rights", APP + "/_rights", {"POST": queues.rights}),
        ("v1.moves", APP + "/_moves", {"POST": moves.begin, "GET": moves.list}),
        ("v1.move", APP + "/_moves/{move}", {"GET": moves.show, "DELETE": moves.cancel}),
        *_of_schedules(ScheduleViews(service, authorization)),
        ("v1.info", QUEUE + "/info", {"GET": queues.info}),
        ("v1.messages", QUEUE + "/messages", {"DELETE": queues.purge}),
        ("v1.lag", QUEUE + "/lag", {"POST": offsets.lag}),
        ("v1.mark", QUEUE + "/read", {"PUT": unread.mark}),
        ("v1.offsets", QUEUE + "/offsets", {"GET": offsets.groups}),
        (
            "v1.group",
            QUEUE + "/offsets/{group}",
            {"GET": offsets.show, "PUT": offsets.record, "DELETE": offsets.forget},
        ),
        *_of_claims(ClaimViews(service, authorization)),
        (
            "v1.named",
            QUEUE + "/named/{name}",
            {
                "POST": names.create,
                "PUT": names.replace,
                "GET": View(names.fetch, asks=True, reads=True),
                "DELETE": names.delete,
            },
        ),
        ("v1.explain", QUEUE + "/explain/{id}", {"GET": explain.explain}),
        (
            "v1.ids",
            QUEUE + "/{ids}",
            {
                "GET": View(messages.fetch, asks=True, page=True),
                "PUT": messages.put,
                "DELETE": messages.delete,
            },
        ),
    ]


def _of_files(files: FileViews) -> list[tuple[str, str, dict[str, View | Handler]]]:
    return [
        ("v1.openapi", "/v1/openapi.json", {"GET": files.document}),
        ("v1.docs", "/docs", {"GET": files.page}),
        ("v1.client", "/client/queuey.js", {"GET": files.client}),
        ("v1.client_types", "/client/queuey.d.ts", {"GET": files.client}),
    ]


def _of_schedules(schedules: ScheduleViews) -> list[tuple[str, str, dict[str, View | Handler]]]:
    return [
        ("v1.schedules", APP + "/_schedules", {"GET": schedules.list}),
        (
            "v1.schedule",
            APP + "/_schedules/{schedule}",
            {"PUT": schedules.put, "GET": schedules.show, "DELETE": schedules.remove},
        ),
        ("v1.run_schedule", APP + "/_schedules/{schedule}/run", {"POST": schedules.run}),
    ]


def _of_claims(claims: ClaimViews) -> list[tuple[str, str, dict[str, View | Handler]]]:
    return [
        (
            "v1.claims_of_several",
            APP + "/_claims",
            {"POST": View(claims.claim_first, asks=True, reads=True)},
        ),
        (
            "v1.claims",
            QUEUE + "/claims",
            {
                "POST": View(claims.claim, asks=True, reads=True),
                "GET": claims.counts,
                "DELETE": claims.release_all,
            },
        ),
        ("v1.ack", QUEUE + "/claims/ack", {"POST": claims.acknowledge}),
        ("v1.renew", QUEUE + "/claims/renew", {"POST": claims.renew}),
        ("v1.release", QUEUE + "/claims/release", {"POST": claims.release}),
        ("v1.state", QUEUE + "/claims/state", {"POST": claims.set_states}),
        ("v1.size", QUEUE + "/size", {"GET": View(claims.size, asks=True)}),
        ("v1.backlog", QUEUE + "/backlog", {"GET": View(claims.backlog, asks=True)}),
        ("v1.jobs", QUEUE + "/jobs", {"GET": View(claims.jobs, asks=True)}),
        ("v1.peek", QUEUE + "/peek", {"GET": View(claims.peek, asks=True, page=True)}),
    ]


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    registry = config.registry
    files = FileViews(registry.service.limits, on_loopback=registry.on_loopback)
    for name, pattern, views in resources(registry.service, registry.authorization, files):
        path = pattern if pattern.endswith("/") else pattern + SLASH
        config.add_resource(name, path, views, original=name in ORIGINAL)
