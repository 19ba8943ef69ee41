"""Views of schedules: put, show, list, remove and run."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any

import msgspec

from queuey.api import schedules as api
from queuey.api.messages import ScheduledMessage
from queuey.messages import Meta
from queuey.service import Draft, ScheduleReport, Service
from queuey.service.schedules import MAX_MESSAGE
from queuey.service.schedules.states import Outcome
from queuey.web.authorization import Authorization
from queuey.web.endpoint import Match
from queuey.web.requests import Request, read_body
from queuey.web.responses import Response, json_response
from queuey.web.v1.schedules.saving import MaySee, ScheduleSaver
from queuey.web.v1.views import Views


class ScheduleViews(Views):
    """Views of ``/v1/{app}/_schedules`` and of the schedules under it."""

    def __init__(self, service: Service, authorization: Authorization) -> None:
        super().__init__(service, authorization)
        # Times as many as JSON may take for it, and the other fields.
        self._most = 8 * MAX_MESSAGE + service.limits.max_header_bytes * 8
        self._saver = ScheduleSaver(service, authorization)

    def put(self, request: Request, match: Match) -> Response:
        may_see = self._authorization.matching(request, match["app"], "admin")
        report, new = self._saver.save(request, match, read_body(request, self._most), may_see)
        return json_response(_shown(report), 201 if new else 200)

    def list(self, may_see: MaySee, application: str, query: api.ScheduleQuery) -> api.ScheduleList:
        found, more = self._service.schedules.list(application, may_see, start=query.start)
        return api.ScheduleList(schedules=[api.ListedSchedule(**_fields(report)) for report in found], more=more)

    def show(self, may_see: MaySee, application: str, schedule: str) -> api.ScheduleState:
        return _shown(self._service.schedules.show(application, schedule, may_see))

    def remove(self, may_see: MaySee, application: str, schedule: str) -> None:
        self._service.schedules.remove(application, schedule, may_see)

    async def run(self, request: Request, match: Match) -> Response:
        application, name = match["app"], match["schedule"]
        may_see = await request.in_pool(partial(self._runnable, request, application))
        return json_response(_shown(await self._service.schedules.fire(application, name, may_see)))

    def _runnable(self, request: Request, application: str) -> MaySee:
        """Returns a test of queue names: the caller may administer the queue and send to it."""
        administers = self._authorization.matching(request, application, "admin")
        sends = self._authorization.matching(request, application, "send")
        return lambda queue: administers(queue) and sends(queue)


def _shown(report: ScheduleReport) -> api.ScheduleState:
    return api.ScheduleState(**_fields(report), message=_message(report.plan.message.draft))


def _fields(report: ScheduleReport) -> dict[str, Any]:
    plan, timetable = report.plan, report.plan.timetable
    return {
        "name": report.name,
        "queue": plan.queue,
        "cron": timetable.cron or None,
        "timezone": timetable.zone if timetable.cron else None,
        "every": timetable.every or None,
        "missed": plan.missed,
        "paused": plan.paused,
        "created": report.created,
        "changed": report.changed,
        "next": tuple(report.next),
        "firing": report.firing,
        "last": None if report.last is None else _tick(report.last),
    }


def _tick(outcome: Outcome) -> api.Tick:
    return api.Tick(
        instant=outcome.instant,
        at=outcome.at,
        state=outcome.state,
        message_id=outcome.message_id or None,
        partition=outcome.partition or None,
        queue=outcome.queue or None,
        error=outcome.error or None,
    )


def _message(draft: Draft) -> ScheduledMessage:
    meta = draft.meta or Meta()
    body: Any = draft.body
    if isinstance(body, bytes):
        body = b64encode(body).decode()
    elif meta.json:
        body = msgspec.Raw(body.encode())
    return ScheduledMessage(
        body=body,
        ttl=draft.ttl,
        partition=draft.partition,
        message_key=draft.key,
        content_type=meta.content_type,
        headers=dict(meta.headers) or None,
        encoding="base64" if isinstance(draft.body, bytes) else None,
    )
