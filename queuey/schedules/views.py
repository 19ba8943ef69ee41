"""Views of schedules, and saving them: reading a plan in JSON, checking the caller's rights, and merging the plan.

A schedule continues after the credential that created it has ended. So saving needs the right to administer the queue
besides the right to send to it: a credential that may only send has no effect after its end.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from queuey.access.authorization import Authorization
from queuey.access.operations import APP, Views, declare, json_answers
from queuey.api import schedules as api
from queuey.api.messages import ScheduledMessage
from queuey.api.values import Done
from queuey.messages.message_views import parse_batch
from queuey.messages.posts import Draft, MessageUseCases
from queuey.model.errors import InvalidRequest, RecordChanged, ScheduleNotFound
from queuey.model.messages import Meta, Queue
from queuey.runtime.limits import Limits
from queuey.schedules.schedule_states import Outcome, ScheduleDefinition, keep_message
from queuey.schedules.schedules import MAX_BODY_BYTES, MAX_NAME_LENGTH, ScheduleReport, ScheduleUseCases
from queuey.schedules.timetables import Timetable, check_cron, check_zone
from queuey.web import validators
from queuey.web.endpoint import Match
from queuey.web.fields import Fields
from queuey.web.openapi import Tag
from queuey.web.requests import Request, read_body
from queuey.web.responses import Response, json_response
from queuey.web.validators import Errors, read_object

_FIELDS = frozenset(api.SchedulePlan.__struct_fields__)
_NAME = re.compile(rf"(?!\.\.?$)[A-Za-z0-9._:@\-]{{1,{MAX_NAME_LENGTH}}}")
Build = Callable[[ScheduleDefinition | None, float], ScheduleDefinition]
"""Returns the new plan, given the present one and the current time in seconds since 1970."""
MaySee = Callable[[str], bool]
"""Returns whether the caller may see the schedules of a queue."""


class ScheduleViews(Views):
    """Views of ``/v1/{app}/_schedules`` and of the schedules under it."""

    def __init__(
        self, authorization: Authorization, limits: Limits, schedules: ScheduleUseCases, messages: MessageUseCases
    ) -> None:
        super().__init__(authorization, limits)
        self._schedules = schedules
        # Characters may be escaped in JSON, and the plan has other fields.
        self._max_body = 8 * MAX_BODY_BYTES + limits.max_header_bytes * 8
        self._saver = ScheduleSaver(authorization, limits, schedules, messages)

    async def put(self, request: Request, match: Match) -> Response:
        may_see = await self._authorization.make_name_test(request, match["app"], "admin")
        report, new = await self._saver.save(request, match, read_body(request, self._max_body), may_see)
        return json_response(_show_schedule(report), 201 if new else 200)

    async def list(self, may_see: MaySee, application: str, query: api.ScheduleQuery) -> api.ScheduleList:
        reports, more = await self._schedules.list(application, may_see, start=query.start)
        return api.ScheduleList(schedules=[api.ListedSchedule(**_show_fields(report)) for report in reports], more=more)

    async def show(self, may_see: MaySee, application: str, schedule: str) -> api.ScheduleState:
        return _show_schedule(await self._schedules.show(application, schedule, may_see))

    async def remove(self, may_see: MaySee, application: str, schedule: str) -> None:
        await self._schedules.remove(application, schedule, may_see)

    async def run(self, request: Request, match: Match) -> Response:
        """Sends the schedule's message now, even if it is paused. Needs the right to send as well."""
        application, name = match["app"], match["schedule"]
        administers = await self._authorization.make_name_test(request, application, "admin")
        sends = await self._authorization.make_name_test(request, application, "send")

        def may_see(queue: str) -> bool:
            return administers(queue) and sends(queue)

        return json_response(_show_schedule(await self._schedules.fire(application, name, may_see)))


def _show_schedule(report: ScheduleReport) -> api.ScheduleState:
    return api.ScheduleState(**_show_fields(report), message=_show_message(report.plan.message.draft))


def _show_fields(report: ScheduleReport) -> dict[str, Any]:
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
        "last": None if report.last is None else _make_tick(report.last),
    }


def _make_tick(outcome: Outcome) -> api.Tick:
    return api.Tick(
        instant=outcome.instant,
        at=outcome.at,
        state=outcome.state,
        message_id=outcome.message_id or None,
        partition=outcome.partition or None,
        queue=outcome.queue or None,
        error=outcome.error or None,
    )


def _show_message(draft: Draft) -> ScheduledMessage:
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


class _MessageText(msgspec.Struct):
    """The message of a plan as JSON text."""

    message: msgspec.Raw


_decode_message = msgspec.json.Decoder(_MessageText).decode


class ScheduleSaver:
    """Saves schedules for version 1 and for the console."""

    def __init__(
        self, authorization: Authorization, limits: Limits, schedules: ScheduleUseCases, messages: MessageUseCases
    ) -> None:
        self._authorization = authorization
        self._schedules = schedules
        self._messages = messages
        self._limits = replace(limits, max_body=min(limits.max_body, MAX_BODY_BYTES))
        self._fields = Fields(api.SchedulePlan, self._limits)

    async def save(self, request: Request, match: Match, text: bytes, may_see: MaySee) -> tuple[ScheduleReport, bool]:
        """Creates a schedule, or changes the fields given in JSON. Returns it, and whether it is new.

        The caller needs ``admin`` and ``send`` on the queue, unless the request only pauses the schedule.
        """
        application, name = match["app"], match["schedule"]
        fields = read_object(text)
        _check_name_and_fields(name, fields)
        queue = await self._find_queue(request, match, fields, may_see)
        build = self._make_builder(request, fields, text, queue)
        return await self._schedules.put(application, name, build, may_see)

    async def _find_queue(
        self, request: Request, match: Match, plan_fields: dict[str, Any], may_see: MaySee
    ) -> Queue | None:
        """Returns the schedule's queue, from the request or else from the present schedule.

        Checks that the caller may administer it and send to it. Returns None, without a check, if the request only
        pauses the schedule.
        """
        if plan_fields.get("queue") is not None:
            name = validators.parse_text(plan_fields["queue"]) if isinstance(plan_fields["queue"], str) else ""
        else:
            try:
                shown = await self._schedules.show(match["app"], match["schedule"], may_see)
                name = shown.plan.queue
            except ScheduleNotFound:
                # A caller that may not see the schedule gets the error when the schedule is saved.
                name = ""
        if not name:
            raise InvalidRequest({"queue": validators.REQUIRED})
        if plan_fields.keys() == {"paused"} and validators.parse_boolean(plan_fields["paused"]):
            return None
        where = {"app": match["app"], "queue": name}
        await self._authorization.admit(request, where, "admin")
        return (await self._authorization.admit(request, where, "send")).queue

    def _make_builder(self, request: Request, plan_fields: dict[str, Any], text: bytes, queue: Queue | None) -> Build:
        """Reads the given fields of a plan. Returns a function that merges them into the present plan.

        The function raises ``InvalidRequest`` if the result lacks a field or its message does not fit the queue, and
        ``RecordChanged`` if the schedule has another queue by now.

        Args:
            request: The request, in which unknown fields of the message are recorded.
            plan_fields: The fields.
            text: The fields as JSON text, because a message keeps the text of its value.
            queue: The schedule's queue; None if the request only pauses the schedule.

        Raises:
            InvalidRequest: Fields are not valid; the error names every one.
        """
        errors = Errors()
        fields = self._fields.read(plan_fields, errors)
        cron, every = fields.cron, fields.every
        zone = errors.parse_field("timezone", _read_zone, fields.timezone)
        message = None
        if plan_fields.get("message") is not None and queue is not None:
            message = _read_message(request, text, queue, self._limits, errors)
        errors.check()

        def build(before: ScheduleDefinition | None, now: float) -> ScheduleDefinition:
            if before is None:
                _require_fields(plan_fields, "queue", "message", "cron" if every is None else "every")
            timetable = _merge_timetable(None if before is None else before.timetable, cron, zone, every, now)
            if before is None:
                assert queue is not None  # noqa: S101 - _require_fields has checked the fields
                assert message is not None  # noqa: S101
                plan = ScheduleDefinition(queue.name, timetable, keep_message(message))
            elif queue is not None and plan_fields.get("queue") is None and before.queue != queue.name:
                raise RecordChanged("queue")
            else:
                plan = replace(before, timetable=timetable)
            if queue is not None:
                plan = replace(
                    plan, queue=queue.name, message=plan.message if message is None else keep_message(message)
                )
                self._check_message(queue, plan.message.draft)
            if fields.paused is not None:
                plan = replace(plan, paused=fields.paused)
            return plan if fields.missed is None else replace(plan, missed=fields.missed)

        return build

    def _check_message(self, queue: Queue, draft: Draft) -> None:
        try:
            self._messages.check(queue, draft)
        except InvalidRequest as error:
            raise InvalidRequest({f"message.{field}": text for field, text in error.fields.items()}) from error


def _check_name_and_fields(name: str, plan_fields: dict[str, Any]) -> None:
    errors = Errors()
    if _NAME.fullmatch(name) is None:
        errors["schedule"] = f"Use 1 to {MAX_NAME_LENGTH} letters, digits and ._:@-, but not . or .."
    for field in plan_fields.keys() - _FIELDS:
        errors[validators.show(field)] = f"Is not a field of a schedule. Use: {', '.join(sorted(_FIELDS))}."
    for field in ("cron", "every"):
        if plan_fields.get("cron") is not None and plan_fields.get("every") is not None:
            errors[field] = "Give either cron or every"
    if plan_fields.get("every") is not None and plan_fields.get("timezone") is not None:
        errors["timezone"] = "Belongs to cron"
    errors.check()


def _read_zone(value: object) -> str:
    name = validators.parse_text(value)
    check_zone(name)
    return name


def _require_fields(plan_fields: dict[str, Any], *fields: str) -> None:
    if missing := {field: validators.REQUIRED for field in fields if plan_fields.get(field) is None}:
        if "cron" in missing:
            missing["cron"] = f"{validators.REQUIRED}: cron or every"
        raise InvalidRequest(missing)


def _merge_timetable(
    before: Timetable | None, cron: str | None, zone: str | None, every: int | None, now: float
) -> Timetable:
    if every is not None:
        return before if before is not None and before.every == every else Timetable(every=every, anchor=int(now))
    if before is not None and cron is None and zone is None:
        return before
    old = before or Timetable()
    new = Timetable(cron or old.cron, zone or old.zone)
    if not new.cron:
        raise InvalidRequest({"timezone": "Belongs to cron"})
    try:
        check_cron(new.cron, new.zone, now)
    except ValueError as error:
        raise InvalidRequest({"cron": str(error)}) from error
    return new


def _read_message(request: Request, text: bytes, queue: Queue, limits: Limits, errors: Errors) -> Draft | None:
    """Reads the message of a plan, and puts errors into ``errors``, also for a message with a delay.

    Returns None if it cannot be read.
    """
    item = bytes(_decode_message(text).message)
    try:
        [parsed] = parse_batch(b'{"messages":[%b]}' % item, limits, queue, request)
    except InvalidRequest as error:
        # The errors are about the batch's only item (0), or its fields (0.ttl).
        errors.update({f"message{field.removeprefix('0')}": text for field, text in error.fields.items()})
        return None
    if parsed.delay:
        errors["message.delay"] = "A schedule's message has no delay"
    return Draft(parsed.body, parsed.ttl, parsed.partition, parsed.meta, key=parsed.key)


SCHEDULES_TAG = Tag("Schedules", "Post messages at scheduled times.")
SCHEDULE = APP + "/_schedules/{schedule}"
OPERATIONS = (
    declare(
        SCHEDULES_TAG,
        f"PUT {SCHEDULE}",
        "Create or change schedule",
        json_answers(api.ScheduleState, 201, 200),
        ScheduleViews.put,
        about="The schedule posts a message at certain times, even after the credential that created it has expired. "
        "409: another request is changing it. 429: the application has 1,000 schedules.",
        body=api.SchedulePlan,
        further_errors=(409,),
    ),
    declare(SCHEDULES_TAG, f"GET {SCHEDULE}", "Show schedule", api.ScheduleState, ScheduleViews.show, "admin"),
    declare(
        SCHEDULES_TAG,
        f"GET {APP}/_schedules",
        "List schedules, up to 100",
        api.ScheduleList,
        ScheduleViews.list,
        "admin",
        query=api.ScheduleQuery,
    ),
    declare(
        SCHEDULES_TAG,
        f"DELETE {SCHEDULE}",
        "Delete schedule",
        Done,
        ScheduleViews.remove,
        "admin",
        further_errors=(409,),
    ),
    declare(
        SCHEDULES_TAG,
        f"POST {SCHEDULE}/run",
        "Run schedule now",
        api.ScheduleState,
        ScheduleViews.run,
        about="Posts the schedule's message now, even if it is paused. `last` has the outcome.",
        resource="run_schedule",
    ),
)
