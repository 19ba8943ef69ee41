"""Version 1 of the API: everything the original Queuey served, and more, under ``/v1``, with ``/`` and ``/docs``.

One include, which owns its routes, its bodies (:mod:`.structs`), its views and its OpenAPI document (:mod:`.spec`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from queuey.messages import OPERATORS
from queuey.service import Service
from queuey.web import api_page
from queuey.web.authorization import Authorization
from queuey.web.endpoint import EarlyHandler, Endpoint, Handler, Match
from queuey.web.responses import JSON, Environ, Response, encode
from queuey.web.v1.claims import ClaimViews
from queuey.web.v1.explain import ExplainView
from queuey.web.v1.hello import HelloView
from queuey.web.v1.messages import MessageViews
from queuey.web.v1.moves import MoveViews
from queuey.web.v1.names import NameViews
from queuey.web.v1.offsets import OffsetViews
from queuey.web.v1.queues import QueueViews
from queuey.web.v1.ranges import RangeViews
from queuey.web.v1.spec import document

HOT = {
    "v1.queue": "",
    "v1.claims": "/claims",
    "v1.ack": "/claims/ack",
    "v1.renew": "/claims/renew",
    "v1.release": "/claims/release",
}
"""The resources that the gateway also reaches without Pyramid, for what need not block: what follows a queue's path."""
SLASH = "{_:/?}"
APP = "/v1/{app}"
QUEUE = APP + "/{queue:[^/_][^/]*}"
ORIGINAL = frozenset({"v1.queue", "v1.application", "v1.ids"})
"""The resources that the original had, too: its clients know their 403 and 404."""
ASKING = {
    "v1.queue": {"GET"},
    "v1.applications": {"GET"},
    "v1.application": {"GET"},
    "v1.ids": {"GET"},
    "v1.named": {"GET"},
    "v1.claims": {"POST"},
    "v1.size": {"GET"},
    "v1.peek": {"GET"},
}
"""Methods whose requests have a query."""


@cache
def _document() -> bytes:
    return encode(document())


def show_document(environ: Environ, match: Match) -> Response:
    """Serves the OpenAPI document."""
    return Response(200, _document(), JSON)


@cache
def _page(link: str) -> bytes:
    return api_page.page(document(), link).encode()


def show_page(environ: Environ, match: Match) -> Response:
    """Serves the OpenAPI document as a page. It is the same for everybody, until another version runs."""
    # The link to the document is relative, because a proxy may serve everything under a path.
    link = "../v1/openapi.json" if environ["PATH_INFO"].endswith("/") else "v1/openapi.json"
    return Response(
        200,
        _page(link),
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Security-Policy", api_page.policy()),
        ("Cache-Control", "public, max-age=3600"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
    )


def routes(
    service: Service, authorization: Authorization, messages: MessageViews, ranges: RangeViews, claims: ClaimViews
) -> list[tuple[str, str, dict[str, Handler]]]:
    """Returns name, pattern and methods of every resource, in the order of matching: the queue itself first."""
    moves = MoveViews(service, authorization)
    queues, offsets, hello = QueueViews(service, authorization), OffsetViews(service, authorization), HelloView(service)
    names, explain = NameViews(service, authorization), ExplainView(service, authorization)
    return [
        (
            "v1.queue",
            QUEUE,
            {"POST": messages.post, "GET": ranges.read, "PUT": queues.update, "DELETE": queues.delete},
        ),
        ("v1.root", "/", {"GET": hello.show}),
        ("v1.hello", "/v1", {"GET": hello.show}),
        ("v1.openapi", "/v1/openapi.json", {"GET": show_document}),
        ("v1.docs", "/docs", {"GET": show_page}),
        ("v1.applications", f"/v1/{OPERATORS}", {"GET": queues.applications}),
        ("v1.application", APP, {"POST": queues.create, "GET": queues.list}),
        ("v1.read", APP + "/_read", {"POST": ranges.read_many}),
        ("v1.rights", APP + "/_rights", {"POST": queues.rights}),
        ("v1.moves", APP + "/_moves", {"POST": moves.begin, "GET": moves.list}),
        ("v1.move", APP + "/_moves/{move}", {"GET": moves.show, "DELETE": moves.cancel}),
        ("v1.info", QUEUE + "/info", {"GET": queues.info}),
        ("v1.messages", QUEUE + "/messages", {"DELETE": queues.purge}),
        ("v1.lag", QUEUE + "/lag", {"POST": offsets.lag}),
        ("v1.offsets", QUEUE + "/offsets", {"GET": offsets.groups}),
        (
            "v1.group",
            QUEUE + "/offsets/{group}",
            {"GET": offsets.show, "PUT": offsets.record, "DELETE": offsets.forget},
        ),
        (
            "v1.claims",
            QUEUE + "/claims",
            {"POST": claims.claim, "GET": claims.counts, "DELETE": claims.release_all},
        ),
        ("v1.ack", QUEUE + "/claims/ack", {"POST": claims.acknowledge}),
        ("v1.renew", QUEUE + "/claims/renew", {"POST": claims.renew}),
        ("v1.release", QUEUE + "/claims/release", {"POST": claims.release}),
        ("v1.size", QUEUE + "/size", {"GET": claims.size}),
        ("v1.peek", QUEUE + "/peek", {"GET": claims.peek}),
        (
            "v1.named",
            QUEUE + "/named/{name}",
            {"POST": names.create, "PUT": names.replace, "GET": names.fetch, "DELETE": names.delete},
        ),
        ("v1.explain", QUEUE + "/explain/{id}", {"GET": explain.explain}),
        ("v1.ids", QUEUE + "/{ids}", {"GET": messages.fetch, "PUT": messages.put, "DELETE": messages.delete}),
    ]


def includeme(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    """Adds version 1 to the application whose service is in the registry."""
    service: Service = config.registry.service
    authorization: Authorization = config.registry.authorization
    messages, ranges = MessageViews(service, authorization), RangeViews(service, authorization)
    claims = ClaimViews(service, authorization)
    at_once: dict[str, dict[str, EarlyHandler]] = {
        "v1.queue": {"POST": messages.begin_post, "GET": ranges.begin_read},
        "v1.claims": {"POST": claims.begin_claim},
        "v1.ack": {"POST": claims.begin_acknowledge},
        "v1.renew": {"POST": claims.begin_renew},
        "v1.release": {"POST": claims.begin_release},
    }
    for name, pattern, handlers in routes(service, authorization, messages, ranges, claims):
        config.add_route(name, pattern if pattern.endswith("/") else pattern + SLASH)
        endpoint = Endpoint(
            name,
            service.metrics,
            handlers,
            at_once.get(name),
            authorization.look_up,
            asking=ASKING.get(name, ()),
            original=name in ORIGINAL,
        )
        config.add_view(endpoint, route_name=name)
        if name in HOT:
            config.registry.hot[HOT[name]] = endpoint
