"""Claims messages, runs them in handlers, and acknowledges or releases them.

::

    waiting ──begin──► running ──handled───────────────► finished (the next claim acknowledges it)
       │                 ├─────failed──────────────────► released with the reason, dead-lettered, or skipped
       │                 └─────too long, thread────────► failed: the run goes on, but its result is discarded
       └──stop, or not begun in time──► released at once

A handler gets a run of several messages. If one of them is slow, those behind it wait again, for another handler.

Claims of waiting and running messages are renewed. The queue's ``backoff`` decides when a released message is delivered
again, and its ``max_deliveries`` when it becomes a dead letter. Both are the same for all workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import random, uniform
from typing import Any

import msgspec
from msgspec.structs import replace

from qdo.errors import InvalidArgument, MissingRights
from qdo.loops import cancel, start_task, wait_for_event
from qdo.partitions import Partition, Queue
from qdo.worker.failure import DeadLetterIt, Failure, RetryLater, RunResult, SkipMessage, StopTheWorker
from qdo.worker.handlers import find_retry
from qdo.worker.rights import RETRY_PAUSES, repeat_until_answered
from qdo.worker.runs import BatchSize, Delivery, MessageRun, RunTracker, fail_overdue
from qdo.worker.sources import REFUSED_PAUSE_SECONDS, Handling, end_if_refused
from queuey.client import AsyncClient, AsyncJob, ClientError, InvalidRequest, Message, QueueNotFound
from queuey.client.calls.claim_calls import Claim, name_this_process
from queuey.client.lookup import rights_for

logger = logging.getLogger("qdo.worker")

MAX_CLAIMED = 1000
MAX_CLAIM_WAIT = 20.0
MAX_UNBEGUN_SECONDS = 0.2
"""Max seconds for which a claimed message waits for a handler before it is released, and max seconds of a run."""

MIN_POLL_INTERVAL = 0.5
"""Min interval between the starts of claim requests that return no messages, in seconds."""
STATES_INTERVAL = 1.0
INTERRUPTED_DELAY_SECONDS = 1.0
"""Interval until a message whose handler was interrupted is delivered again, in seconds."""


class Claims:
    """Queues from which a worker claims messages, in order of preference. Claims need no coordination service.

    ::

        from qdo import Claims, StopWorker, Worker
        from queuey.client import AsyncClient

        def handle(message, context):
            print(message.body)
            raise StopWorker  # without this line the worker runs until SIGTERM or Ctrl-C

        assert Worker(handle, Claims(AsyncClient(), ["orders"])).run() == 0

    Args:
        client: Sends the requests. The caller closes it, but :meth:`~qdo.Worker.run` does so itself.
        queues: 1 to 10 names. While the first has messages, the others wait.
        ttl: Duration of a claim, 2 to 43,200 seconds. After it the messages of a dead worker go to another. Claims of
            messages that are being handled are renewed.

    Raises:
        InvalidArgument: A queue name, the number of queues, or ``ttl`` is not valid.
    """

    def __init__(self, client: AsyncClient, queues: Iterable[str], *, ttl: float = 30.0) -> None:
        if not 2 <= ttl <= 43_200:  # noqa: PLR2004 - as the documentation has it
            raise InvalidArgument(f"ttl is {ttl:g} s: claims last 2 to 43,200 s")
        self.client = client
        self.jobs = client.job_queue(queues)
        self.ttl = ttl


@dataclass(eq=False, slots=True)
class ClaimedRun:
    """The jobs of a run, of which the first ``acknowledged`` are finished. Empty once its handler hangs."""

    partition: Partition
    jobs: list[AsyncJob]
    acknowledged: int = 0


class ClaimSource:
    """A :class:`qdo.worker.sources.Source` that claims messages.

    Its start needs the right to claim from all queues, and creates and updates the queues of tasks. A job that was
    handled after its claim had expired is acknowledged without a handler if it is claimed again. The drain releases all
    jobs that have not begun.

    Raises:
        InvalidArgument: The settings have ``by``, but claims keep no order.
    """

    def __init__(self, claims: Claims, handling: Handling) -> None:
        settings = handling.settings
        if settings.by is not None:
            raise InvalidArgument("claims do not keep the order of messages: leave out by")
        self._claims = claims
        self._jobs = claims.jobs
        self._handling = handling
        # The queue's max_deliveries limits the attempts.
        self._settings = replace(settings, retry=replace(settings.retry, attempts=0))
        seconds = min(settings.slice, MAX_UNBEGUN_SECONDS)
        self._batch_size = BatchSize(seconds, min(settings.batch, MAX_CLAIMED), first=1)
        self._last_claimed = 0
        """Number of messages of the last claim, or 0 if it got far fewer than it asked for, or some were released."""
        self._tracker: RunTracker[ClaimedRun] = RunTracker(
            handling, self._batch_size, self._settle_run, self._wait_again, self._handle_overdue
        )
        self._queues: dict[str, Queue] = {}
        self._waiting: deque[AsyncJob] = deque()
        self._overdue: deque[tuple[str, int, str]] = deque(maxlen=MAX_CLAIMED)
        """The latest messages that were handled after their claims had expired, and so may be delivered again."""
        self._settling: set[asyncio.Task[None]] = set()
        self._preparing: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._refused: float | None = None
        """When the service began to refuse claims, by the loop's clock."""
        self._stopping = False
        self._quiet = asyncio.Event()

    async def start(self) -> None:
        client, names = self._claims.client, self._jobs.queues
        service = (await repeat_until_answered(client, lambda once: once.hello())).id
        rights = await repeat_until_answered(client, lambda once: rights_for(once, names))
        if lacking := [name for name in names if "work" not in rights[name]]:
            raise MissingRights(
                f"the credential may not claim from {', '.join(lacking)}: give it read and claim (docs/access.md)"
            )
        await self._handling.handler.keep_queues(client)
        self._queues = {name: Queue(service, client.application, name) for name in names}
        logger.info("claims messages of %s as %s", ", ".join(names), name_this_process())
        start_task(self._handling.handler.keep_schedules(client), self._preparing)

    async def take(self) -> bool:
        self._dispatch()
        # A suspected job spends only its own attempts if nothing is claimed before it has ended.
        is_alone = any(job.claimed.suspected for owner in self._tracker.runs.values() for job in owner.jobs[:1])
        free = 0 if self._waiting or is_alone else max(0, self._tracker.free_slots)
        # An idle worker claims few, so that it leaves others some; a busy one many, to send few requests.
        limit = min(free * self._batch_size.max_messages, max(free, 4 * self._last_claimed), MAX_CLAIMED)
        if not limit:
            return False
        wait = min(MAX_CLAIM_WAIT, self._claims.ttl / 3)
        begun = asyncio.get_running_loop().time()
        taking = self._jobs.take(limit, ttl=self._claims.ttl, wait=wait, begin_within=MAX_UNBEGUN_SECONDS)
        claiming = asyncio.ensure_future(taking)
        stopping = asyncio.ensure_future(self._handling.stop_requested.wait())
        try:
            await asyncio.wait({claiming, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if claiming.done():
                claimed = claiming.result()
                handled = [job for job in claimed if _make_job_key(job) in self._overdue] if self._overdue else []
                self._acknowledge(handled)
                jobs = [job for job in claimed if job not in handled]
                for job in jobs:
                    job.held_claim.delay_if_left = 0.0  # until a handler starts on it
                self._waiting.extend(jobs)
                self._last_claimed = len(claimed) if 2 * len(claimed) >= limit else 0
                self._failures, self._refused = 0, None
                if not claimed:  # Limits the rate if the service does not hold claim requests open.
                    pause = begun + MIN_POLL_INTERVAL - asyncio.get_running_loop().time()
                    await wait_for_event(self._handling.stop_requested, max(0.0, pause))
        except ClientError as error:
            await self._pause_after(error)
        finally:
            await cancel(claiming, stopping)
        self._dispatch()
        return True

    async def _pause_after(self, error: ClientError) -> None:
        """Waits after a failed claim. Permanent refusals, except of missing queues, count as ``refused``."""
        self._failures += 1
        loop = asyncio.get_running_loop()
        if error.temporary:
            if self._failures == 1:
                logger.warning("no messages can be claimed now, retrying: %s", error)
            pause = RETRY_PAUSES.pause(self._failures, uniform(0.5, 1.0))  # noqa: S311 - spreads load
        else:
            if self._failures == 1 or not isinstance(error, QueueNotFound):
                logger.error("the service refuses claims, retrying: %s", error)
            if not isinstance(error, QueueNotFound):
                self._refused = self._refused or loop.time()
            pause = REFUSED_PAUSE_SECONDS
        await wait_for_event(self._handling.stop_requested, pause)

    def wake(self) -> None:
        """Does nothing: a waiting claim request already serves all free handlers."""

    # Handling

    def _dispatch(self) -> None:
        while self._waiting and not self._stopping and (free := self._tracker.free_slots) > 0:
            share = min(self._batch_size.max_messages, -(-len(self._waiting) // free))
            self._start_run(self._take_run(share))

    def _take_run(self, max_jobs: int) -> list[AsyncJob]:
        """Takes waiting jobs with the same partition and delivery number, or a single one that was delivered before.

        Leaves out jobs that were released because no handler was free, and drops expired and cancelled ones.
        """
        first = self._waiting[0]
        max_jobs = max_jobs if first.deliveries == 1 else 1

        def fits(job: AsyncJob) -> bool:
            alike = (job.queue, job.message.partition, job.deliveries)
            return alike == (first.queue, first.message.partition, first.deliveries)

        jobs = [job for _, job in zip(range(max_jobs), takewhile(fits, list(self._waiting)), strict=False)]
        for _ in jobs:
            self._waiting.popleft()
        self._jobs.begin(jobs)
        begun = [job for job in jobs if job.held_claim.begun and not job.cancelled]
        if len(begun) < len(jobs):
            self._drop([job for job in jobs if job not in begun])
        return begun

    def _drop(self, jobs: Sequence[AsyncJob]) -> None:
        """Releases jobs whose claims have expired, because a renewal under way may restore them, and cancelled ones."""
        held = [job for job in jobs if job.held]
        if len(held) < len(jobs):
            self._last_claimed = 0
        if lost := [job for job in held if not job.cancelled]:
            logger.warning("%d jobs of %s were not started: their claims have expired", len(lost), lost[0].queue)
        if len(lost) < len(held):
            logger.info("%d jobs were not started: they are cancelled", len(held) - len(lost))
        self._jobs.wait_again(held)
        self._in_background(self._jobs.leave(held))

    def _start_run(self, jobs: list[AsyncJob]) -> None:
        if not jobs:
            return
        run = MessageRun([job.message for job in jobs], jobs[0].deliveries)
        run.keeps_results = jobs[0].claimed.result_ttl > 0
        delivery = self._make_delivery(jobs[0])
        self._tracker.start(ClaimedRun(delivery.partition, jobs), run, delivery)
        self._tracker.watch(run)

    def _wait_again(self, owner: ClaimedRun, _run: MessageRun, messages: Sequence[Message]) -> None:
        self._queue_again(owner.jobs, len(owner.jobs) - len(messages))
        self._dispatch()

    def _queue_again(self, jobs: list[AsyncJob], start: int) -> None:
        """Removes from a run its jobs from index ``start`` on, which have not begun, and queues them before others."""
        self._jobs.wait_again(jobs[start:])
        self._waiting.extendleft(reversed(jobs[start:]))
        del jobs[start:]

    def _make_delivery(self, job: AsyncJob) -> Delivery:
        return Delivery(Partition(self._queues[job.queue], job.message.partition), job.deliveries, job.state)

    def _settle_run(self, owner: ClaimedRun, run: MessageRun, ran: RunResult) -> None:
        """Acknowledges the handled messages of a run, handles its failure, and queues the rest again, first.

        The result of a run that had hung is ignored.
        """
        if not run.hangs:
            self._acknowledge_handled(owner, run, ran.handled)
            failure, rest = ran.failure, owner.jobs[ran.handled :]
            if failure is not None and rest:
                self._handle_failure(rest.pop(0), failure, run.take_new_state())
            elif failure is not None and failure.effect == "exit":
                self._handling.end(StopTheWorker("error"), failure)
            elif rest and run.cancelled:
                self._in_background(self._leave(rest.pop(0), run.take_new_state()))
            self._queue_again(rest, 0)
        self._dispatch()
        self._update_quiet()
        self._handling.changed()

    def _acknowledge_handled(self, owner: ClaimedRun, run: MessageRun, handled: int) -> None:
        """Acknowledges the jobs up to index ``handled``, exclusive, with their results."""
        jobs = owner.jobs[owner.acknowledged : handled]
        for index, job in enumerate(jobs, owner.acknowledged) if run.results else ():
            job.held_claim.result = run.results.pop(index, None)
        owner.acknowledged = handled
        self._acknowledge(jobs)

    def _acknowledge(self, jobs: Sequence[AsyncJob]) -> None:
        """Acknowledges jobs. Jobs whose claims have expired are acknowledged again if they are claimed again."""
        for job in takewhile(lambda job: job.lost, jobs):
            self._overdue.append(_make_job_key(job))
            self._handling.count_message("overdue", job.queue, job.message)
            text = "the claim of %r expired before %s had handled it; an async handler must not block the event loop"
            logger.warning(text, job, self._handling.handler.call_of(job.message) or "the handler")
        self._jobs.finish(jobs)

    def _handle_failure(self, job: AsyncJob, failure: Failure, state: tuple[int, bytes] | None) -> None:
        """Retries, skips or buries a job, or ends the worker. A cancelled job is not retried."""
        handling, place, message = self._handling, self._make_delivery(job), job.message
        retry = find_retry(handling.handler.task_of(message), failure)
        settings = self._settings
        if retry.attempts is not None:
            settings = replace(settings, retry=replace(settings.retry, attempts=retry.attempts))
        decision = handling.decide_failure(settings, place, message, failure)
        match decision:
            case StopTheWorker():
                self._in_background(self._leave(job, state, begun=decision.why == "message"))
                handling.end(decision, failure)
            case RetryLater() | DeadLetterIt() if job.cancelled:
                text = "attempt %d failed, and is not retried because the job is cancelled: %s"
                handling.report(logging.WARNING, place, message, failure, text, job.deliveries)
                self._in_background(self._release(job, failure, state=state))
            case RetryLater():
                delay = retry.delay(job.deliveries, random())  # noqa: S311 - spreads load
                handling.record_retry(place, message, failure, delay or 0.0)
                text = "attempt %d failed, the job will be delivered again: %s"
                handling.report(logging.WARNING, place, message, failure, text, job.deliveries)
                self._in_background(self._release(job, failure, delay, state=state))
            case SkipMessage():
                handling.record_given_up(place, message, failure, "skipped")
                self._acknowledge([job])
            case DeadLetterIt():
                text = "given up after %d attempts, the job becomes a dead letter: %s"
                handling.report(logging.ERROR, place, message, failure, text, job.deliveries)
                handling.record_given_up(place, message, failure, "dead")
                self._in_background(self._release(job, failure, retry=False, state=state))

    async def _send_state(self, job: AsyncJob, state: tuple[int, bytes] | None) -> None:
        if state is not None:
            await self._set_states([(None, job.claimed, state[1])])

    async def _leave(self, job: AsyncJob, state: tuple[int, bytes] | None, *, begun: bool = False) -> None:
        """Sends the state of a job whose handler was interrupted, and gives it back; ``begun`` attempts count."""
        job.held_claim.delay_if_left, job.held_claim.begun = INTERRUPTED_DELAY_SECONDS, begun
        await self._send_state(job, state)
        await self._jobs.leave([job])

    async def _release(
        self,
        job: AsyncJob,
        failure: Failure,
        delay: float | None = None,
        *,
        retry: bool = True,
        state: tuple[int, bytes] | None = None,
    ) -> None:
        """Sends a failed job's state and releases it; if that fails, the job waits until its claim expires."""
        await self._send_state(job, state)
        try:
            begun = not failure.is_unknown_task
            await job.release(delay, reason=(failure.kind, failure.text), retry=retry, begun=begun)
        except ClientError as error:
            logger.warning("%r could not be released, so it waits until its claim expires: %s", job, error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        start_task(work, self._settling).add_done_callback(lambda _: self._update_quiet())

    # Beside

    def background_tasks(self) -> list[Coroutine[Any, Any, None]]:
        return [self._watch_runs(), self._send_states()]

    async def _watch_runs(self) -> None:
        """Acknowledges handled messages and checks the runs at intervals; ends the worker if refused too long."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            for run, owner in self._tracker.runs.items():
                self._acknowledge_handled(owner, run, run.handled)
            self._tracker.check()
            end_if_refused(self._handling, 0.0 if self._refused is None else loop.time() - self._refused)

    async def _send_states(self) -> None:
        """Sends new states at intervals, and asks the handlers of cancelled jobs to stop."""
        while True:
            await asyncio.sleep(STATES_INTERVAL)
            self._ask_cancelled_to_stop()
            latest = [(run, owner.jobs, run.take_new_state()) for run, owner in self._tracker.runs.items()]
            states = [(run, jobs[state[0]].claimed, state[1]) for run, jobs, state in latest if jobs and state]
            if states:
                await self._set_states(states)

    def _ask_cancelled_to_stop(self) -> None:
        for run, owner in self._tracker.runs.items():
            for index, job in enumerate(owner.jobs):
                if job.cancelled and index not in run.to_stop:
                    logger.info("%r is cancelled: its handler is asked to stop", job)
                    run.ask_to_stop(index)

    async def _set_states(self, states: Sequence[tuple[MessageRun | None, Claim, bytes]]) -> None:
        """Sends states to the service. Failures are logged; after temporary ones, states of active runs are resent."""
        try:
            await self._jobs.set_states([(claim, msgspec.json.decode(state)) for _, claim, state in states])
        except InvalidRequest as error:
            if len(states) == 1:
                logger.warning("the service refuses a state: %s", error)
            else:  # One state was refused, perhaps because its message was purged.
                for state in states:
                    await self._set_states([state])
        except (ClientError, RecursionError) as error:
            logger.warning("states could not be set: %s", error)
            for run, _, _ in states:
                if run is not None and isinstance(error, ClientError) and error.temporary:
                    run.state_seen = None

    def _handle_overdue(self, owner: ClaimedRun, run: MessageRun) -> None:
        """Fails the message of a handler that hangs. Later messages of the run wait again."""
        if not run.hangs:
            return
        run.stop()
        handled = run.handled
        self._acknowledge_handled(owner, run, handled)
        self._queue_again(owner.jobs, handled + 1)
        for job in owner.jobs[handled:]:
            self._handle_failure(job, fail_overdue(self._settings.stalled_after), run.take_new_state())
        owner.jobs.clear()
        self._dispatch()
        self._handling.changed()

    # The end

    def _update_quiet(self) -> None:
        if all(run.hangs for run in self._tracker.runs) and not self._settling:
            self._quiet.set()

    async def drain(self, patience: float) -> bool:
        self._stopping = True
        for run, owner in self._tracker.runs.items():
            self._queue_again(owner.jobs, len(owner.jobs) - len(run.take_back()))
        waiting = list(self._waiting)
        self._waiting.clear()
        await self._jobs.leave(waiting)
        self._quiet.clear()
        self._update_quiet()
        finished = await wait_for_event(self._quiet, patience)
        if not finished:
            names = sorted({str(owner.partition) for owner in self._tracker.runs.values() if owner.jobs})
            logger.warning("messages were not finished in time, so some will be handled again: %s", ", ".join(names))
        return finished and not self._tracker.runs

    async def wait_until_ended(self, deadline: float) -> None:
        await wait_for_event(self._quiet, deadline - asyncio.get_running_loop().time())

    async def close(self) -> None:
        self._stopping = True
        begun = [job for run, owner in self._tracker.runs.items() for job in owner.jobs[run.handled :]]
        for job in begun:  # Their attempts do not count.
            job.held_claim.delay_if_left, job.held_claim.begun = INTERRUPTED_DELAY_SECONDS, False
        await self._jobs.leave([*self._waiting, *begun])
        await self._jobs.settle()
        await cancel(*self._settling, *self._preparing)

    async def close_all(self) -> None:
        await self._claims.client.close()


def _make_job_key(job: AsyncJob) -> tuple[str, int, str]:
    return job.queue, job.message.partition, job.message.id
