"""Acts on schedules: run, pause, resume, change, remove and create, with the rules of the API."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from queuey.console import pages
from queuey.console.acts.act import Act, ActResult, Field, Plan
from queuey.console.acts.messages import SendMessage, read_item
from queuey.console.sessions import PageRequest
from queuey.errors import Conflict, InvalidRequest, NotAllowed, NotFound, ScheduleNotFound, StoreUnavailable
from queuey.service import ScheduleReport
from queuey.time_parsing import parse_duration


class ScheduleAct(Act):
    """An act on one schedule. The caller needs the rights with the schedule's queue.

    The form has the time of the schedule's last change; an act on a schedule that was changed since then is refused.
    """

    logged_fields: tuple[str, ...] = ("schedule",)
    fields: tuple[str, ...] = ("schedule", "seen")

    def find(self, ask: PageRequest) -> ScheduleReport:
        """Returns the schedule.

        Raises:
            ScheduleNotFound: The schedule does not exist, or the caller lacks a right with its queue.
        """
        return ask.service.schedules.show(ask.application, ask.get("schedule"), partial(self.may_act_on, ask))

    def may_act_on(self, ask: PageRequest, queue: str) -> bool:
        return all(ask.may(action, queue) for action in self.needs)

    def queue(self, ask: PageRequest) -> str:
        schedule = self.find(ask)
        if ask.get("seen") != str(schedule.changed):
            raise InvalidRequest({"seen": "Somebody has changed the schedule meanwhile. Check it, and send it again"})
        return schedule.plan.queue

    def subject(self, ask: PageRequest) -> str:
        return ask.get("schedule")

    def begins_on(self, ask: PageRequest) -> str:
        return pages.link(*filter(None, ("a", ask.application, "_schedules", self.subject(ask))))

    def plan(self, ask: PageRequest) -> Plan:
        schedule = self.find(ask)
        about = f"Its messages go to queue {schedule.plan.queue}. {self.about}"
        return Plan(about=about, hidden={"seen": str(schedule.changed)}, button=self.title)

    def save(self, ask: PageRequest, **changes: object) -> None:
        """Changes the given fields of the schedule, or creates it; the others stay.

        Needs ``admin`` and ``send`` with its queue, or only ``admin`` to pause it. Does not check ``seen``, which
        :meth:`queue` does.
        """
        match = {"app": ask.application, "schedule": ask.get("schedule")}
        ask.schedules.save(ask.request, match, msgspec.json.encode(changes), ask.matching("admin"))


class RunSchedule(ScheduleAct):
    """Posts the schedule's message now.

    Raises StoreUnavailable if the outcome is ``unknown``, and Conflict if the message was not stored otherwise.
    """

    name, title, needs = "schedule-run", "Run now", ("admin", "send")
    about = "Posts the message once now, even if the schedule is paused. The timetable does not change."

    def do(self, ask: PageRequest) -> ActResult:
        fire = ask.service.schedules.fire(ask.application, ask.get("schedule"), partial(self.may_act_on, ask))
        last = ask.service.core.run(fire).last
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

    def do(self, ask: PageRequest) -> ActResult:
        self.save(ask, paused=True)
        return ActResult(text=f"Paused schedule {ask.get('schedule')}.")


class ResumeSchedule(ScheduleAct):
    name, title, needs = "schedule-resume", "Resume", ("admin", "send")
    about = "Continues with the next time of the timetable."

    def do(self, ask: PageRequest) -> ActResult:
        self.save(ask, paused=False)
        return ActResult(text=f"Resumed schedule {ask.get('schedule')}.")


class RemoveSchedule(ScheduleAct):
    name, title, needs = "schedule-remove", "Remove", ("admin",)
    types_name = destroys = True
    about = "Posts nothing from then on. A message that is being posted now may still arrive.\nThis cannot be undone."

    def do(self, ask: PageRequest) -> ActResult:
        ask.service.schedules.remove(ask.application, ask.get("schedule"), partial(self.may_act_on, ask))
        return ActResult(text=f"Removed schedule {ask.get('schedule')}.")


class ChangeSchedule(ScheduleAct):
    """Changes the typed fields of a schedule; without any, it changes nothing.

    Any field of the message replaces the whole message, and needs a body. An interval is cut to whole seconds.
    """

    name, title, needs = "schedule-change", "Change", ("admin", "send")
    timing = ("queue", "cron", "timezone", "every", "missed")
    logged_fields = ("schedule", *timing, "form", "message_key", "partition", "ttl")
    fields = (*logged_fields, "body", "headers", "seen")
    longest = SendMessage.longest
    about = "Blank fields do not change. A body replaces the whole message."

    def inputs(self, ask: PageRequest) -> tuple[Field, ...]:
        missed = (("", "no change; at first skipped"), ("skip", "are skipped"), ("catch_up", "are caught up"))
        return (
            Field("queue", "Queue"),
            Field("cron", "Cron expression", hint="Minute, hour, day, month, day of the week: 0 3 * * *"),
            Field("timezone", "Its time zone", hint="Such as Europe/Berlin; at first UTC."),
            Field("every", "Or an interval", hint="Seconds, or such as 5m."),
            Field("missed", "Times at which no service ran", "", "choice", choices=missed),
            *(field for field in SendMessage().inputs(ask) if field.name in self.fields),
        )

    def do(self, ask: PageRequest) -> ActResult:
        fields: dict[str, Any] = {name: text for name in self.timing if (text := ask.get(name))}
        try:
            fields |= {"every": int(min(parse_duration(fields["every"]), 1e9))} if "every" in fields else {}
        except ValueError as error:
            raise InvalidRequest({"every": str(error)}) from None
        if any(ask.given.get(name) for name in ("body", "headers", "message_key", "partition", "ttl")):
            fields["message"] = read_item(ask)
        if not fields:
            return ActResult(text="No field was filled in, so nothing was changed.")
        self.save(ask, **fields)
        return ActResult(text=f"Saved schedule {ask.get('schedule')}.")


class AddSchedule(ChangeSchedule):
    """Creates a schedule.

    Refuses the name of a schedule that the caller may change, and a queue with which ``admin`` or ``send`` is missing.
    """

    name, title = "schedule-add", "Create a schedule"
    about = "The service posts the message at each time of the timetable, even after your key has expired."

    def queue(self, ask: PageRequest) -> str:
        with suppress(ScheduleNotFound):
            self.find(ask)
            raise InvalidRequest({"schedule": "There is a schedule of this name"})
        try:
            ask.enter("admin", ask.get("queue"))
            return ask.enter("send", ask.get("queue")).queue.name
        except (NotAllowed, NotFound) as error:
            raise InvalidRequest({"queue": str(error)}) from None

    def subject(self, ask: PageRequest) -> str:
        return ""

    def inputs(self, ask: PageRequest) -> tuple[Field, ...]:
        return (Field("schedule", "Name"), *super().inputs(ask))

    def plan(self, ask: PageRequest) -> Plan:
        return Act.plan(self, ask)
