"""Acts on schedules: run, pause, resume, change, remove and create, with the rules of the API."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from queuey.console import pages
from queuey.console.acts.act import Act, ActPlan, ActResult, Field
from queuey.console.acts.messages import SendMessageAct, read_item
from queuey.console.sessions import PageRequest
from queuey.model.errors import Conflict, InvalidRequest, NotAllowed, NotFound, ScheduleNotFound, StoreUnavailable
from queuey.model.time_parsing import parse_duration
from queuey.schedules.schedules import ScheduleReport


class ScheduleAct(Act):
    """An act on one schedule. The caller needs the rights with the schedule's queue.

    The form has the time of the schedule's last change; an act on a schedule that was changed since then is refused.
    """

    logged_fields: tuple[str, ...] = ("schedule",)
    fields: tuple[str, ...] = ("schedule", "seen")

    async def find(self, page_request: PageRequest) -> ScheduleReport:
        """Returns the schedule.

        Raises:
            ScheduleNotFound: The schedule does not exist, or the caller lacks a right with its queue.
        """
        return await page_request.service.schedules.show(
            page_request.application, page_request.get("schedule"), partial(self.may_act_on, page_request)
        )

    def may_act_on(self, page_request: PageRequest, queue: str) -> bool:
        return all(page_request.may(action, queue) for action in self.needs)

    async def require_queue(self, page_request: PageRequest) -> str:
        schedule = await self.find(page_request)
        if page_request.get("seen") != str(schedule.changed):
            raise InvalidRequest({"seen": "Somebody has changed the schedule meanwhile. Check it, and send it again"})
        return schedule.plan.queue

    def subject(self, page_request: PageRequest) -> str:
        return page_request.get("schedule")

    def page_address(self, page_request: PageRequest) -> str:
        return pages.link(*filter(None, ("a", page_request.application, "_schedules", self.subject(page_request))))

    async def plan(self, page_request: PageRequest) -> ActPlan:
        schedule = await self.find(page_request)
        about = f"Its messages go to queue {schedule.plan.queue}. {self.about}"
        return ActPlan(about=about, hidden={"seen": str(schedule.changed)}, button=self.title)

    async def save(self, page_request: PageRequest, **changes: object) -> None:
        """Changes the given fields of the schedule, or creates it; the others stay.

        Needs ``admin`` and ``send`` with its queue, or only ``admin`` to pause it. Does not check ``seen``, which
        :meth:`require_queue` does.
        """
        match = {"app": page_request.application, "schedule": page_request.get("schedule")}
        await page_request.schedules.save(
            page_request.request, match, msgspec.json.encode(changes), await page_request.make_name_test("admin")
        )


class RunSchedule(ScheduleAct):
    """Posts the schedule's message now.

    Raises StoreUnavailable if the outcome is ``unknown``, and Conflict if the message was not stored otherwise.
    """

    name, title, needs = "schedule-run", "Run now", ("admin", "send")
    about = "Posts the message once now, even if the schedule is paused. The timetable does not change."

    async def do(self, page_request: PageRequest) -> ActResult:
        fire = page_request.service.schedules.fire(
            page_request.application, page_request.get("schedule"), partial(self.may_act_on, page_request)
        )
        last = (await fire).last
        assert last is not None  # noqa: S101 - it was fired
        if last.state == "unknown":
            raise StoreUnavailable(last.error, outcome="unknown")
        if last.state != "published":
            raise Conflict(last.error)
        place = f"{last.partition}:{last.message_id}"
        return ActResult(text=f"Stored message {place}.", details={"message": place})


class PauseSchedule(ScheduleAct):
    name, title, needs = "schedule-pause", "Pause", ("admin",)
    about = "Posts nothing until the schedule is resumed. Times during the pause are skipped."

    async def do(self, page_request: PageRequest) -> ActResult:
        await self.save(page_request, paused=True)
        return ActResult(text=f"Paused schedule {page_request.get('schedule')}.")


class ResumeSchedule(ScheduleAct):
    name, title, needs = "schedule-resume", "Resume", ("admin", "send")
    about = "Continues with the next time of the timetable."

    async def do(self, page_request: PageRequest) -> ActResult:
        await self.save(page_request, paused=False)
        return ActResult(text=f"Resumed schedule {page_request.get('schedule')}.")


class RemoveSchedule(ScheduleAct):
    name, title, needs = "schedule-remove", "Remove", ("admin",)
    types_name = destroys = True
    about = "Posts nothing from then on. A message that is being posted now may still arrive.\nThis cannot be undone."

    async def do(self, page_request: PageRequest) -> ActResult:
        await page_request.service.schedules.remove(
            page_request.application, page_request.get("schedule"), partial(self.may_act_on, page_request)
        )
        return ActResult(text=f"Removed schedule {page_request.get('schedule')}.")


class ChangeSchedule(ScheduleAct):
    """Changes the typed fields of a schedule; without any, it changes nothing.

    Any field of the message replaces the whole message, and needs a body. An interval is cut to whole seconds.
    """

    name, title, needs = "schedule-change", "Change", ("admin", "send")
    timing = ("queue", "cron", "timezone", "every", "missed")
    logged_fields = ("schedule", *timing, "form", "message_key", "partition", "ttl")
    fields = (*logged_fields, "body", "headers", "seen")
    longest = SendMessageAct.longest
    about = "Blank fields do not change. A body replaces the whole message."

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        missed = (("", "no change; at first skipped"), ("skip", "are skipped"), ("catch_up", "are caught up"))
        return (
            Field("queue", "Queue"),
            Field("cron", "Cron expression", hint="Minute, hour, day, month, day of the week: 0 3 * * *"),
            Field("timezone", "Its time zone", hint="Such as Europe/Berlin; at first UTC."),
            Field("every", "Or an interval", hint="Seconds, or such as 5m."),
            Field("missed", "Times at which no service ran", "", "choice", choices=missed),
            *(field for field in await SendMessageAct().inputs(page_request) if field.name in self.fields),
        )

    async def do(self, page_request: PageRequest) -> ActResult:
        fields: dict[str, Any] = {name: text for name in self.timing if (text := page_request.get(name))}
        try:
            fields |= {"every": int(min(parse_duration(fields["every"]), 1e9))} if "every" in fields else {}
        except ValueError as error:
            raise InvalidRequest({"every": str(error)}) from None
        if any(page_request.given.get(name) for name in ("body", "headers", "message_key", "partition", "ttl")):
            fields["message"] = read_item(page_request)
        if not fields:
            return ActResult(text="No field was filled in, so nothing was changed.")
        await self.save(page_request, **fields)
        return ActResult(text=f"Saved schedule {page_request.get('schedule')}.")


class AddSchedule(ChangeSchedule):
    """Creates a schedule.

    Refuses the name of a schedule that the caller may change, and a queue with which ``admin`` or ``send`` is missing.
    """

    name, title = "schedule-add", "Create a schedule"
    about = "The service posts the message at each time of the timetable, even after your key has expired."

    async def require_queue(self, page_request: PageRequest) -> str:
        with suppress(ScheduleNotFound):
            await self.find(page_request)
            raise InvalidRequest({"schedule": "There is a schedule of this name"})
        try:
            await page_request.enter("admin", page_request.get("queue"))
            return (await page_request.enter("send", page_request.get("queue"))).queue.name
        except (NotAllowed, NotFound) as error:
            raise InvalidRequest({"queue": str(error)}) from None

    def subject(self, page_request: PageRequest) -> str:
        return ""

    async def inputs(self, page_request: PageRequest) -> tuple[Field, ...]:
        return (Field("schedule", "Name"), *await super().inputs(page_request))

    async def plan(self, page_request: PageRequest) -> ActPlan:
        return await Act.plan(self, page_request)
