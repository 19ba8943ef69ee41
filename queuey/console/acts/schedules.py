"""Acts on schedules: run, pause, resume, change, remove and create. The rules are the API's."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from queuey.console import pages
from queuey.console.acts.act import Act, Deed, Field, Plan
from queuey.console.acts.messages import SendMessage, item_of
from queuey.console.sessions import Ask
from queuey.errors import Conflict, InvalidRequest, NotAllowed, NotFound, ScheduleNotFound, StoreUnavailable
from queuey.service import ScheduleReport
from queuey.time_parsing import duration


class OfSchedule(Act):
    """Does something with one schedule, for whom the needs are met at its queue."""

    noted: tuple[str, ...] = ("schedule",)
    fields: tuple[str, ...] = ("schedule", "seen")

    def find(self, ask: Ask) -> ScheduleReport:
        """Returns the schedule.

        Raises:
            ScheduleNotFound: There is none with whose queue the caller may do what is needed.
        """
        return ask.service.schedules.show(ask.application, ask.get("schedule"), partial(self.may, ask))

    def may(self, ask: Ask, queue: str) -> bool:
        return all(ask.may(action, queue) for action in self.needs)

    def queue(self, ask: Ask) -> str:
        found = self.find(ask)
        if ask.get("seen") != str(found.changed):
            raise InvalidRequest({"seen": "Somebody has changed the schedule meanwhile. Look at it, and send it again"})
        return found.plan.queue

    def subject(self, ask: Ask) -> str:
        return ask.get("schedule")

    def begins_on(self, ask: Ask) -> str:
        return pages.link(*filter(None, ("a", ask.application, "_schedules", self.subject(ask))))

    def plan(self, ask: Ask) -> Plan:
        found = self.find(ask)
        about = f"Its messages go to queue {found.plan.queue}. {self.about}"
        return Plan(about=about, hidden={"seen": str(found.changed)}, button=self.title)

    def save(self, ask: Ask, **given: object) -> None:
        """Changes the given fields, as the API does."""
        match = {"app": ask.application, "schedule": ask.get("schedule")}
        ask.schedules.save(ask.request, match, msgspec.json.encode(given), ask.matching("admin"))


class RunSchedule(OfSchedule):
    name, title, needs = "schedule-run", "Run now", ("admin", "send")
    about = "Its message is posted now, once, also if it is paused. Its timetable goes on as it was."

    def do(self, ask: Ask) -> Deed:
        fire = ask.service.schedules.fire(ask.application, ask.get("schedule"), partial(self.may, ask))
        last = ask.service.core.run(fire).last
        assert last is not None  # noqa: S101 - it was fired
        if last.state == "unknown":
            raise StoreUnavailable(last.error, outcome="unknown")
        if last.state != "published":
            raise Conflict(last.error)
        place = f"{last.partition}:{last.message_id}"
        return Deed(text=f"Stored message {place}.", details={"message": place})


class PauseSchedule(OfSchedule):
    name, title, needs = "schedule-pause", "Pause", ("admin",)
    about = "It posts nothing until it is resumed. What comes while it is paused is not made up for."

    def do(self, ask: Ask) -> Deed:
        self.save(ask, paused=True)
        return Deed(text=f"Paused schedule {ask.get('schedule')}.")


class ResumeSchedule(OfSchedule):
    name, title, needs = "schedule-resume", "Resume", ("admin", "send")
    about = "It goes on with the next instant of its timetable."

    def do(self, ask: Ask) -> Deed:
        self.save(ask, paused=False)
        return Deed(text=f"Resumed schedule {ask.get('schedule')}.")


class RemoveSchedule(OfSchedule):
    name, title, needs = "schedule-remove", "Remove", ("admin",)
    types_name = destroys = True
    about = "It posts nothing from then on. A message that is being posted now may still come.\nThis cannot be undone."

    def do(self, ask: Ask) -> Deed:
        ask.service.schedules.remove(ask.application, ask.get("schedule"), partial(self.may, ask))
        return Deed(text=f"Removed schedule {ask.get('schedule')}.")


class ChangeSchedule(OfSchedule):
    """Changes the typed fields of a schedule."""

    name, title, needs = "schedule-change", "Change", ("admin", "send")
    timing = ("queue", "cron", "timezone", "every", "missed")
    noted = ("schedule", *timing, "form", "message_key", "partition", "ttl")
    fields = (*noted, "body", "headers", "seen")
    longest = SendMessage.longest
    about = "Blank fields stay as they are. A body replaces the whole message."

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        missed = (("", "as it is; at first skipped"), ("skip", "are skipped"), ("catch_up", "are made up for"))
        return (
            Field("queue", "Queue"),
            Field("cron", "Cron expression", hint="Minute, hour, day, month, day of the week: 0 3 * * *"),
            Field("timezone", "Time zone of it", hint="Such as Europe/Berlin; at first UTC."),
            Field("every", "Or an interval", hint="Seconds, or such as 5m."),
            Field("missed", "Ticks that nobody was there to fire", "", "choice", choices=missed),
            *(field for field in SendMessage().inputs(ask) if field.name in self.fields),
        )

    def do(self, ask: Ask) -> Deed:
        given: dict[str, Any] = {name: text for name in self.timing if (text := ask.get(name))}
        try:
            given |= {"every": int(min(duration(given["every"]), 1e9))} if "every" in given else {}
        except ValueError as error:
            raise InvalidRequest({"every": str(error)}) from None
        if any(ask.given.get(name) for name in ("body", "headers", "message_key", "partition", "ttl")):
            given["message"] = item_of(ask)
        if not given:
            return Deed(text="Nothing was typed, so nothing was changed.")
        self.save(ask, **given)
        return Deed(text=f"Saved schedule {ask.get('schedule')}.")


class AddSchedule(ChangeSchedule):
    name, title = "schedule-add", "Make a schedule"
    about = "The service posts the message at each instant of the timetable, also when your key has ended."

    def queue(self, ask: Ask) -> str:
        with suppress(ScheduleNotFound):
            self.find(ask)
            raise InvalidRequest({"schedule": "There is a schedule of this name"})
        try:
            ask.enter("admin", ask.get("queue"))
            return ask.enter("send", ask.get("queue")).queue.name
        except (NotAllowed, NotFound) as error:
            raise InvalidRequest({"queue": str(error)}) from None

    def subject(self, ask: Ask) -> str:
        return ""

    def inputs(self, ask: Ask) -> tuple[Field, ...]:
        return (Field("schedule", "Name"), *super().inputs(ask))

    def plan(self, ask: Ask) -> Plan:
        return Act.plan(self, ask)
