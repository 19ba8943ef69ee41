"""Views of schedules: the list of an application, and one schedule with its message."""

from __future__ import annotations

from queuey.console import bodies
from queuey.console.acts import OF_SCHEDULES
from queuey.console.sessions import Ask
from queuey.messages import Meta
from queuey.web.responses import Response

FIELDS = frozenset({"start"})


def show_list(ask: Ask) -> Response:
    """Lists the schedules of queues that the caller administers."""
    may_see, start = ask.matching("admin"), ask.given.get("start", "")
    found, following = ask.service.schedules.list(ask.application, may_see, start=start)
    return ask.render(
        "schedules.html",
        "Schedules of",
        ask.application,
        schedules=found,
        following=following,
        patterns=ask.patterns("admin"),
        may_add=bool(ask.caller.patterns(ask.application, "send")),
    )


def show(ask: Ask) -> Response:
    """Shows a schedule, and the acts that the caller may do."""
    schedule = ask.service.schedules.show(ask.application, ask.match["schedule"], ask.matching("admin"))
    plan = schedule.plan
    idle = "schedule-pause" if plan.paused else "schedule-resume"
    return ask.render(
        "schedule.html",
        "Schedule",
        schedule.name,
        schedule=schedule,
        acts=[act for act in OF_SCHEDULES if act.name != idle and act.may(ask, plan.queue)],
        body=bodies.shown(plan.message.draft.body),
        meta=plan.message.meta or Meta(),
    )
