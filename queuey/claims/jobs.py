"""Single jobs: operators' acts on them, and their status by the claim log and the row of their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from queuey.api.jobs import UNFINISHED, JobInfo
from queuey.claims.job_records import EXPIRED_ERROR, JobEnd, JobRecord, JobRecords, Leaving
from queuey.claims.log.claim_search import LogCache, QueueLogs
from queuey.claims.log.follow_ups import TOO_MANY_DELIVERIES_ERROR
from queuey.claims.log.log_requests import JobRequest, Key, StateQuery, too_many_done_error
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules.entry_draft import EntryDraft
from queuey.claims.rules.operator_acts import JobStanding, cancel, make_available_now
from queuey.claims.rules.partition_state import ClaimTiming, State
from queuey.claims.rules.receipts import ClaimReceipt, LastDelivery
from queuey.model import ids
from queuey.model.deadletters import Attempt, DeadLetter, decode_dead_letter, queue_for
from queuey.model.errors import MessageNotFound, QueueNotFound
from queuey.model.ids import Position
from queuey.model.messages import Location, Message, Queue
from queuey.runtime.event_loop import Core
from queuey.runtime.limits import Limits
from queuey.runtime.waiters import Waiter, WakeSource
from queuey.storage import LEDGER_TTL, Store

REFRESH_INTERVAL = 0.5
"""Interval in seconds between reads of a log whose jobs are waited for."""
MAX_REFRESHES = 200
"""Max reads of watched logs per second and process."""
CANCELLED_ERROR = "Cancelled"
"""Error class of the last attempt of a message that an operator has removed."""
MAX_CHECKED_JOBS = 100_000
"""Max jobs per second, approximately, checked after rounds of one log. A later round or read checks the rest."""


class LogView(NamedTuple):
    """Standing of a job by the claim log.

    Attributes:
        standing: ``new``: the log does not have it; ``outbox``: it becomes a dead letter; ``ending``: it expired or was
            cancelled; ``left``: gone after an unacknowledged delivery; ``final``: acknowledged, or gone for another
            reason.
        claim: Its last delivery, if it is outstanding.
        was_moved: A move may have taken it.
    """

    standing: Literal["new", "claimed", "retrying", "waiting", "outbox", "ending", "left", "final"]
    claim: LastDelivery | None = None
    was_moved: bool = False

    @property
    def has_ended(self) -> bool:
        return self.standing in {"outbox", "ending", "left", "final"}


class JobPoll:
    """A request for the status of jobs, shared by all its attempts.

    Attributes:
        unfinished: Jobs seen unfinished by an earlier attempt. If one has no row of its end now, it has just ended.
        source: Wakes the request; None before it has waited.
        has_tried: The first attempt was made.
    """

    def __init__(self, locations: Sequence[Location], *, states: bool = False) -> None:
        self.locations = locations
        self.states = states
        self.unfinished: set[Location] = set()
        self.source: WakeSource | None = None
        self.has_tried = False


class JobAnswer(NamedTuple):
    """Infos of all jobs, or none. True if one of the jobs has ended."""

    infos: list[JobInfo]
    has_ended: bool

    def __bool__(self) -> bool:
        return self.has_ended


class _Watched:
    """A watched log: its waiting requests by their wake functions, and the boot time of the next check."""

    def __init__(self) -> None:
        self.waiting: dict[Callable[[], None], tuple[Queue, Collection[Position]]] = {}
        self.due = 0.0


class JobWatch:
    """Wakes requests that wait for the end of jobs. Used in the loop's thread, except to end a watch.

    Attributes:
        watched: Watched logs by key.
    """

    def __init__(self, logs: LogCache, core: Core) -> None:
        self._logs = logs
        self._core = core
        self.watched: dict[Key, _Watched] = {}
        self._refreshing: asyncio.Task[None] | None = None

    def make_source(self, locations: Iterable[Location]) -> WakeSource:
        return WakeSource(partial(self._watch, _group_by_partition(locations)), for_all=True)

    def _watch(
        self, positions: Mapping[int, list[Position]], queue: Queue, partition: int, wake: Callable[[], None]
    ) -> Callable[[], None]:
        """Adds a wake function to a partition's log, if jobs are in it, and starts :meth:`_refresh`.

        Returns a function that removes the wake function, from any thread.
        """
        key = (queue.qid, partition)
        # Copy the function: a waiter may pass the same one for several partitions and requests.
        own_wake = partial(wake)
        if partition in positions:
            self.watched.setdefault(key, _Watched()).waiting[own_wake] = (queue, positions[partition])
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = self._core.spawn(self._refresh())
        return partial(self._core.call_soon, self._remove_wake, key, own_wake)

    def _remove_wake(self, key: Key, wake: Callable[[], None]) -> None:
        watched = self.watched.get(key, _Watched())
        watched.waiting.pop(wake, None)
        if not watched.waiting:
            self.watched.pop(key, None)

    def wake_for(self, log: PartitionLog) -> None:
        """Wakes requests of which a job is done in the log, unless ``MAX_CHECKED_JOBS`` forbids a check now."""
        watched, now = self.watched[log.key], self._core.boottime()
        if now < watched.due:
            return
        waiting = list(watched.waiting.items())
        watched.due = now + sum(len(positions) for _, (_, positions) in waiting) / MAX_CHECKED_JOBS
        for wake, (_, positions) in waiting:
            if any(map(log.state.is_done, positions)):
                wake()

    async def _refresh(self) -> None:
        """Reads the watched logs until none is left, because other processes acknowledge jobs, too."""
        while self.watched:
            await asyncio.sleep(max(REFRESH_INTERVAL, len(self.watched) / MAX_REFRESHES))
            for key, watched in list(self.watched.items()):
                queue, _ = next(iter(watched.waiting.values()))
                self._logs.add(key, StateQuery(queue, lambda _state: None))


class JobUseCases:
    """The status of single jobs, and acts of operators on them.

    Args:
        store: Store of messages, dead letters and the ledger.
        core: Event loop and clock.
        limits: Limits of one answer.
        timing: Decides when claims have expired.
        logs: The logs of queues.
        watch: Wakes waiting requests.
    """

    def __init__(
        self, store: Store, core: Core, limits: Limits, timing: ClaimTiming, logs: QueueLogs, watch: JobWatch
    ) -> None:
        self._store = store
        self._core = core
        self._limits = limits
        self._timing = timing
        self._logs = logs
        self._watch = watch
        self._records = JobRecords(store.ledger)

    async def read_answer(self, queue: Queue, poll: JobPoll, waiter: Waiter | None = None) -> JobAnswer:
        """Returns the status of jobs; subscribes the waiter. Later attempts return no infos until a job has ended."""
        if waiter is not None:
            numbers = sorted({number for number, _ in poll.locations})
            poll.source = poll.source or self._watch.make_source(poll.locations)
            waiter.subscribe([(queue, numbers, poll.source)])
        views = await self.find_views(queue, poll.locations)
        poll.unfinished.update(location for location, view in views.items() if not view.has_ended)
        if waiter is not None and poll.has_tried and not any(view.has_ended for view in views.values()):
            return JobAnswer([], has_ended=False)
        poll.has_tried = True
        infos: list[JobInfo] = await self._core.read_in_thread(partial(self._read_infos, queue, poll, views))
        return JobAnswer(infos, any(info.status not in UNFINISHED for info in infos))

    async def find_views(self, queue: Queue, locations: Iterable[Location]) -> dict[Location, LogView]:
        expiry_limit = self._timing.expiry_limit(self._store.clock.now_ms())
        positions = _group_by_partition(locations)
        queries = {
            number: StateQuery(queue, partial(_find_views, positions[number], expiry_limit)) for number in positions
        }
        answers = await self._logs.ask(queue, queries)
        return {(number, position): view for number, views in answers.items() for position, view in views.items()}

    async def record_leaving(
        self,
        queue: Queue,
        locations: Collection[Location],
        status: Literal["removed", "superseded"],
        *,
        is_stored: bool = True,
    ) -> Collection[Location]:
        """Marks jobs that are not done and whose messages are about to be removed, or have been (not ``is_stored``).

        Returns the jobs whose messages have not been delivered.
        """
        views = await self.find_views(queue, locations)
        open_jobs = {location: view.standing != "new" for location, view in views.items() if view.standing != "final"}
        await self.mark_leaving(queue, open_jobs, status)
        # A first delivery may have come before the mark. Claims also pass a message that is no longer stored.
        undelivered = {location for location, was_delivered in open_jobs.items() if not was_delivered}
        views = await self.find_views(queue, undelivered)
        silent = {"new"} if is_stored else {"new", "final"}
        delivered = [location for location, view in views.items() if view.standing not in silent]
        await self.mark_leaving(queue, dict.fromkeys(delivered, True), status)
        return undelivered.difference(delivered)

    async def mark_leaving(
        self, queue: Queue, delivered: Mapping[Location, bool], status: Literal["removed", "superseded"]
    ) -> None:
        for location, was_delivered in delivered.items():
            mark = Leaving(status, self._store.clock.now_ms() / 1000, was_delivered)
            await self._records.mark_leaving(queue, *location, mark)

    async def record_moved(self, queue: Queue, locations: Collection[Location]) -> None:
        """Records ``removed`` as the end of jobs that left the queue after a delivery without an acknowledgement."""
        views = await self.find_views(queue, locations)
        now = self._store.clock.now_ms() / 1000
        for location in [location for location, view in views.items() if view.standing == "left"]:
            await self._records.record_end(queue, *location, "removed", now)

    # Acts of operators

    async def cancel(self, queue: Queue, partition: int | None, position: Position) -> JobStanding:
        """Ends a message that is waiting, retrying or delayed; asks the worker of a claimed one to stop.

        A claimed message is not delivered again. Its worker learns of the cancellation when it renews the claim.

        Args:
            queue: The queue's row, already authorized for the caller.
            partition: The message's partition; None searches all of them.
            position: The message's position.

        Raises:
            ClaimsRefused: The queue's consistency level does not allow claims.
            MessageNotFound: The message does not exist.
            TooManyClaims: The partition remembers too many messages above its cursor.
        """
        location = await self._locate(queue, partition, position)
        undelivered = await self.record_leaving(queue, [location], "removed") if queue.result_ttl else ()
        standing, number = await self._act(queue, location, cancel)
        if standing == "delayed":
            await self._store.messages.delete(queue, [location])
            standing, number = await self._act(queue, location, cancel)  # It may have become due meanwhile.
        if standing == "delayed":
            return "removed"
        if standing == "removed":
            why = Attempt(
                number=number, at=self._store.clock.now_ms() / 1000, error=CANCELLED_ERROR, text="by an operator"
            )
            await self._records.add_attempt(queue, *location, why)
            await self._records.record_end(queue, *location, "removed", why.at)
        elif location in undelivered:  # It was delivered since, so if it becomes done, it was acknowledged.
            await self.mark_leaving(queue, {location: True}, "removed")
        return standing

    async def make_available_now(self, queue: Queue, partition: int | None, position: Position) -> JobStanding:
        """Makes a retrying or delayed message available at once. Raises as :meth:`cancel`.

        Raises:
            InvalidRequest: The message is delayed, and the queue keeps keys or is a dedup queue.
        """
        location = await self._locate(queue, partition, position)
        standing, _ = await self._act(queue, location, make_available_now)
        return standing

    async def _locate(self, queue: Queue, partition: int | None, position: Position) -> Location:
        numbers = range(1, queue.partitions + 1) if partition is None else [partition]
        self._logs.check(queue, numbers)
        locations = [(number, position) for number in numbers]
        for message in await self._store.messages.fetch(queue, locations):
            return message.partition, position
        # A claimed message may have been deleted meanwhile.
        outstanding = await self._logs.query_states(queue, lambda state, _limit: position in state.outstanding, numbers)
        for number in filter(outstanding.get, numbers):
            return number, position
        raise MessageNotFound(ids.to_hex(position) if partition is None else f"{partition}:{ids.to_hex(position)}")

    async def _act(
        self, queue: Queue, location: Location, act: Callable[[EntryDraft, ClaimReceipt], JobStanding]
    ) -> tuple[JobStanding, int]:
        """Applies an act in the message's log; returns the standing and the last entry's number. Raises if refused."""
        number, position = location
        request = JobRequest(queue, act, ClaimReceipt(number, *position))
        standing, entry = (await self._logs.ask(queue, {number: request}))[number]
        if standing == "refused" and act is make_available_now:
            queue.traits.check("deliver early", queue, "id")
        if standing == "refused":
            raise too_many_done_error(number)
        return standing, entry

    # Reading, in a thread

    async def _read_infos(self, queue: Queue, poll: JobPoll, views: Mapping[Location, LogView]) -> list[JobInfo]:
        now = self._store.clock.now_ms() / 1000
        to_find = [location for location, view in views.items() if view.standing not in {"claimed", "left", "final"}]
        messages = await self._fetch_messages(queue, to_find)
        recorded = [location for location, view in views.items() if poll.states or view.standing != "claimed"]
        records = {location: await self._records.read(queue, *location) for location in recorded}
        ends = {location: record.find_shown_end(queue, now) for location, record in records.items()}
        ended = [location for location, view in views.items() if view.standing in {"left", "final"}]
        silent = [location for location in ended if ends[location] is None]
        messages |= await self._fetch_messages(queue, silent)
        letters = await self._find_letters(queue, silent)
        infos = {}
        for location, view in views.items():
            evidence = Evidence(
                view, location in messages, ends.get(location), letters.get(location), location in poll.unfinished
            )
            fields = self._status_fields(queue, location, evidence, now)
            if fields["status"] in {"waiting", "retrying", "failed"} and "error" not in fields:
                fields |= _failure_fields(records[location], fields["status"])
            if poll.states:
                state = records[location].state
                fields["state"] = None if state is None else msgspec.Raw(state.json)
                fields["state_at"] = None if state is None else state.at
            infos[location] = JobInfo(message_id=ids.to_hex(location[1]), partition=location[0], **fields)
        return [infos[location] for location in poll.locations]

    def _status_fields(self, queue: Queue, location: Location, evidence: Evidence, now: float) -> dict[str, Any]:
        """Returns the fields of a job's status: by the log if the job is claimed, or unfinished and stored.

        Otherwise the row of its end decides. Without such a row, a job that the log does not have as ended is
        ``expired`` or ``never_seen``.
        """
        view, end = evidence.view, evidence.end
        if view.standing in {"claimed", "waiting", "retrying"} and (evidence.is_there or view.standing == "claimed"):
            return _claim_fields(view)
        if view.standing == "new" and evidence.is_there:
            is_due = location[1][0] <= self._store.clock.now_ticks()
            return {"status": "waiting" if is_due else "delayed"}
        if view.standing in {"outbox", "ending"} and evidence.is_there:
            return {"status": "failed" if view.standing == "outbox" else "removed"}
        if end is not None and (fields := _end_fields(queue, end, view, now)):
            return fields
        if view.standing not in {"left", "final"}:
            ttl = queue.ttl or self._limits.default_ttl
            has_expired = view.standing != "new" or now > ids.ticks_to_seconds(location[1][0]) + ttl
            return {"status": "expired" if has_expired else "never_seen"}
        return self._fields_without_row(queue, location, evidence, now)

    def _fields_without_row(self, queue: Queue, location: Location, evidence: Evidence, now: float) -> dict[str, Any]:
        """Returns the status of a job that is done, or has left the queue, without a row of its end.

        Its dead letter decides; else it is ``done`` or ``removed`` if that is certain, and ``unknown`` if not.
        """
        if evidence.letter is not None:
            cause = evidence.letter.cause
            status = "expired" if cause.error == EXPIRED_ERROR else "failed"
            return {"status": status, "ended": cause.at, "error": cause.error, "text": cause.text}
        ttl, age = queue.ttl or self._limits.default_ttl, now - ids.ticks_to_seconds(location[1][0])
        keeps = queue.result_ttl > 0
        unknown = {"status": "unknown", "kept": queue.result_ttl}
        if evidence.view.standing == "left":
            return {"status": "removed"} if keeps else unknown
        was_deleted = keeps and queue.on_ack == "delete" and age <= ttl and not evidence.view.was_moved
        if age > LEDGER_TTL or not (evidence.is_there or was_deleted):
            return unknown
        # A result written that recently would still have its row.
        is_recent = keeps and (age <= queue.result_ttl or evidence.was_unfinished)
        return {"status": "done"} | ({"result": None} if is_recent else {"kept": queue.result_ttl})

    async def _fetch_messages(self, queue: Queue, locations: Sequence[Location]) -> dict[Location, Message]:
        step = max(1, self._limits.page_bytes // self._limits.longest)
        messages: dict[Location, Message] = {}
        for start in range(0, len(locations), step):
            for message in await self._store.messages.fetch(queue, locations[start : start + step]):
                messages[message.partition, message.position] = msgspec.structs.replace(message, body="")
        return messages

    async def _find_letters(self, queue: Queue, locations: Sequence[Location]) -> dict[Location, DeadLetter]:
        if not locations:
            return {}
        name = queue_for(queue.name)
        try:
            row = await self._store.catalogue.queue(queue.application, name)
        except QueueNotFound:
            return {}
        letters = {}
        existing = [location for location in locations if location[0] <= row.partitions]
        for location, message in (await self._fetch_messages(row, existing)).items():
            headers = dict(message.meta.headers) if message.meta else {}
            letter = decode_dead_letter(headers, "", lies=(name, location[0], message.id), content_type=None)
            if letter is not None and letter.queue == queue.name:
                letters[location] = letter
        return letters


class Evidence(NamedTuple):
    """What determines the status of a job: its log, its message, the row of its end, and its dead letter."""

    view: LogView
    is_there: bool
    end: JobEnd | None
    letter: DeadLetter | None
    was_unfinished: bool


def _group_by_partition(locations: Iterable[Location]) -> dict[int, list[Position]]:
    positions: dict[int, list[Position]] = {}
    for number, position in locations:
        positions.setdefault(number, []).append(position)
    return positions


def _find_views(positions: Iterable[Position], expiry_limit: int, state: State) -> dict[Position, LogView]:
    return {position: _find_view(position, expiry_limit, state) for position in positions}


def _find_view(position: Position, expiry_limit: int, state: State) -> LogView:
    """Returns a job's standing; a done job no newer than the newest move may have been moved."""
    claim = state.outstanding.get(position)
    if claim is not None:
        return LogView(state.find_status(position, expiry_limit), claim)
    if position in state.outbox:
        return LogView("outbox" if state.outbox[position][0] else "ending")
    if position in state.superseded:
        return LogView("left")
    if not state.is_done(position):
        return LogView("new")
    return LogView("final", was_moved=state.move is not None and position[0] <= state.move.number)


def _failure_fields(record: JobRecord, status: str) -> dict[str, Any]:
    if record.attempts:
        return {"error": record.attempts[-1].error, "text": record.attempts[-1].text}
    default = {"error": TOO_MANY_DELIVERIES_ERROR, "text": "delivered too often without an acknowledgement"}
    return default if status == "failed" else {}


def _claim_fields(view: LogView) -> dict[str, Any]:
    claim = view.claim
    assert claim is not None  # noqa: S101 - views of claimed messages have one
    counts = {"deliveries": claim.attempts, "handed_out": claim.handed_out}
    fields = {"status": view.standing, **counts, "worker": claim.worker}
    return fields if view.standing == "waiting" else fields | {"expires": claim.expires / 1000}


def _end_fields(queue: Queue, end: JobEnd, view: LogView, now: float) -> dict[str, Any]:
    """Returns the fields of a job's status by the row of its end; none if the row does not decide.

    A result counts only if its message is done: only then was it certainly acknowledged.
    """
    if end.is_decided:
        return {"status": end.status, "ended": end.time} | ({"error": end.error, "text": end.text} if end.error else {})
    is_final, mark = view.standing == "final", end.leaving
    if mark is not None and not (is_final and (end.status == "done" or mark.was_delivered)):
        return {"status": mark.status, "ended": mark.time}
    if not is_final:
        return {}
    if now > end.time + queue.result_ttl:
        return {"status": "done", "kept": queue.result_ttl}
    if end.status == "void":
        return {"status": "done", "result": None}
    result = {"size": end.size} if end.json is None else {"result": msgspec.Raw(end.json)}
    return {"status": "done", "ended": end.time, **result}
