"""A run by hand posts one message, whatever happens to its schedule meanwhile, and answers with its own outcome."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from queuey.model import ids
from queuey.model.errors import KeyInUse, NotFound, StoreUnavailable
from queuey.model.messages import Queue
from queuey.schedules.schedule_states import KIND
from queuey.schedules.schedules import ScheduleReport
from queuey.storage import Catalogue, KeyedPosts, Records, Store, bridge
from tests.backends import APP, Clock
from tests.contract.samples import fresh_name, make_queue, method_of, read_one, whole_partition
from tests.contract.schedules.processes import Process, pause_plan, plan
from tests.interposed_store import Killed

CALLS = (Records.record, Catalogue.queue, Records.set_record, KeyedPosts.append_once)
"""Calls of a run, at each of which others act."""
MAX_CALLS = 7
"""At most as many calls as a run makes without others: 5, and some after a conflict."""
BEGIN = 3
"""The call by which a run begins to fire."""
Act = Literal["change", "pause", "move", "remove", "make again", "run", "step", "stop"]
ACTS: tuple[Act, ...] = ("change", "pause", "move", "remove", "make again", "run", "step", "stop")
Fault = Literal["none", "unknown", "in use"]
"""How the call ends: refused without an effect, carried out without an answer, or others use its key."""


class Moment(NamedTuple):
    """What happens at one call of a run.

    Attributes:
        call: Number of the call, from 1.
        after: It happens after the call, not before.
    """

    call: int
    after: bool
    acts: list[Act]
    fault: Fault | None = None


moments = st.builds(
    Moment,
    st.integers(1, MAX_CALLS),
    st.booleans(),
    st.lists(st.sampled_from(ACTS), min_size=1, max_size=3),
    st.sampled_from((None, None, None, "none", "unknown", "in use")),
)


class History:
    """A run of one process, in the midst of which another process acts on the schedule.

    Attributes:
        reports: Reports of the runs that were answered.
        in_doubt: Number of runs whose outcome is unknown.
        report: The report of the first process, if it was answered.
        created: Time at which the schedule was created.
    """

    def __init__(self, store: Store, other: Store, clock: Clock, moment: Moment) -> None:
        self.reports: list[ScheduleReport] = []
        self.in_doubt = 0
        self._clock = clock
        self._moment = moment
        self._calls = 0
        self._runner, self._rival = Process(store, clock), Process(other, clock)
        self._queues = [make_queue(store), make_queue(store)]
        self._plans = [plan(queue, "own", every=86_400) for queue in self._queues]
        self.name = fresh_name()
        self.created = self._runner.put(self.name, self._plans[0]).created

    def run(self) -> None:
        """Runs the schedule by hand with all that happens meanwhile. At the end, no firing is left."""
        for method in CALLS:
            self._runner.between.instead(method, partial(self._call, method))
        self.report = self._run_once(self._runner)
        self._settle()

    def _call(self, method: Callable[..., Any], *args: Any, **named: Any) -> object:  # noqa: ANN401 - of any method
        """Carries out a call of the run, and what happens at it."""
        moment, real = self._moment, method_of(self._runner.between.real, method)
        self._calls += 1
        if self._calls != moment.call:
            return bridge.run(real(*args, **named))
        if not moment.after:
            self._act()
        if moment.fault == "in use" and method is KeyedPosts.append_once:
            raise KeyInUse("key")
        if moment.fault == "none":
            raise StoreUnavailable("away", outcome="none")
        result = bridge.run(real(*args, **named))
        if moment.after:
            self._act()
        if moment.fault == "unknown":
            raise StoreUnavailable("away", outcome="unknown")
        return result

    def _act(self) -> None:
        for act in self._moment.acts:
            self._clock.advance(0.01)
            with suppress(NotFound):  # An earlier act has removed the schedule.
                self._act_once(act)

    def _act_once(self, act: Act) -> None:
        match act:
            case "change" | "move":
                self._rival.put(self.name, plan(self._queues[act == "move"], act, every=3600))
            case "pause":
                self._rival.put(self.name, pause_plan(self._rival.report(self.name).plan))
            case "remove" | "make again":
                bridge.run(self._rival.schedules.remove(APP, self.name, bool))
                if act == "make again":
                    self._rival.put(self.name, self._plans[1])
            case "run":
                self._run_once(self._rival)
            case "step":
                self._settle()
            case "stop":
                before = self._rival.report(self.name).firing
                stopped = Process(self._rival.between.real, self._clock)
                stopped.between.instead(KeyedPosts.append_once, _stop)
                with suppress(Killed):
                    self._run_once(stopped)
                self.in_doubt += before is None

    def _run_once(self, process: Process) -> ScheduleReport | None:
        try:
            report = process.service.core.run(process.schedules.fire(APP, self.name, bool))
        except StoreUnavailable as error:
            self.in_doubt += error.outcome == "unknown"
            return None
        except NotFound:
            return None
        self.reports.append(report)
        return report

    def _settle(self) -> None:
        if bridge.run(self._rival.between.store.records.record(KIND, APP, self.name)) is not None:
            self._rival.settle(self.name)

    def list_posted(self) -> set[str]:
        """Returns the ids of the messages in both queues."""
        part = msgspec.structs.replace(whole_partition(), keeps_read_delay=False, due=False)
        store = self._rival.between.store
        return {
            ids.to_hex(message.position) for queue in self._queues for message in read_one(store, queue, part).messages
        }


def _stop(*_args: object, **_named: object) -> object:
    raise Killed


@settings(max_examples=25)
@given(moment=moments)
@example(Moment(5, after=False, acts=["change"]))
@example(Moment(5, after=False, acts=["remove"]))
@example(Moment(5, after=False, acts=["make again"]))
@example(Moment(4, after=True, acts=["run", "run"]))
@example(Moment(4, after=False, acts=[], fault="in use"))
def test_one_run_one_message(store: Store, other: Store, clock: Clock, moment: Moment) -> None:
    """A run posts one message and reports it, whatever others do at any of its calls; a run without a report none.

    A run whose outcome is unknown posts one at most, and exactly one unless the schedule is removed.
    """
    history = History(store, other, clock, moment)
    history.run()
    reported = [report.last for report in history.reports if report.last is not None]
    assert [outcome.state for outcome in reported] == ["published"] * len(history.reports)
    known, posted = {outcome.message_id for outcome in reported}, history.list_posted()
    assert len(known) == len(reported)
    assert known <= posted
    assert len(posted) <= len(reported) + history.in_doubt
    if moment.fault is None and not {"remove", "make again"} & {*moment.acts}:
        assert len(posted) == len(reported) + history.in_doubt
    if moment.call > BEGIN and history.report is not None:
        assert history.report.created == history.created


def test_a_run_that_another_has_finished(store: Store, other: Store, clock: Clock) -> None:
    """A run whose message another process has posted reports that, also if the queue was purged since."""
    runner, rival, queue = Process(store, clock), Process(other, clock), make_queue(store)
    runner.put(queue.name, plan(queue, every=86_400))

    def finish_and_read(application: str, name: str, **named: bool) -> Queue:
        if rival.report(name).firing is not None:
            rival.settle(name)
            bridge.run(other.catalogue.purge_queue(bridge.run(other.catalogue.queue(APP, name))))
        return bridge.run(store.catalogue.queue(application, name, **named))

    runner.between.instead(Catalogue.queue, finish_and_read)
    report = runner.service.core.run(runner.schedules.fire(APP, queue.name, bool))
    assert report.last is not None
    assert report.last.state == "published"


def test_a_run_of_a_schedule_that_is_moved_away(store: Store, other: Store, clock: Clock) -> None:
    """If a schedule is moved to a queue that the caller may not see, the report shows it as it was."""
    runner, rival, queue, hidden = Process(store, clock), Process(other, clock), make_queue(store), make_queue(store)
    runner.put(queue.name, plan(queue, every=86_400))

    def move() -> None:
        rival.put(queue.name, plan(hidden, every=86_400))

    runner.between.before(KeyedPosts.append_once, move)
    report = runner.service.core.run(runner.schedules.fire(APP, queue.name, lambda name: name == queue.name))
    assert report.last is not None
    assert (report.last.state, report.plan.queue) == ("published", queue.name)
