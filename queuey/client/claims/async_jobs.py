"""A queue as a job queue, for async code: the same calls as in :mod:`queuey.client.claims.jobs`, awaited."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import TYPE_CHECKING, Protocol, TypeVar, Unpack

from queuey.client.calls import claim_calls, tracing
from queuey.client.calls.call import Call
from queuey.client.calls.claim_calls import RECEIPTS_PER_CALL, Claim, ReleaseReason
from queuey.client.calls.read_calls import Partitions
from queuey.client.claims.claiming import (
    ClaimedQueues,
    Claiming,
    ClaimOptions,
    LoopOptions,
    OnError,
    check_on_error,
)
from queuey.client.claims.held import LEAVING, HeldJob, Hold, Holding, Work, receipts_by_queue
from queuey.client.claims.results import Backlog, ClaimCounts, Claimed, OutstandingJob, QueueSize, Received, Refused
from queuey.client.errors import ClaimLost, ClientError, InvalidArgument
from queuey.client.http.attempts import AsyncTiming, Notice, Patience
from queuey.client.http.retry import RetryPolicy
from queuey.client.results import Message

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class AsyncRun(Protocol):
    """Sends a call until it is answered or may not be sent again, within the client's patience or so many seconds."""

    async def __call__(self, call: Call[T], within: float | None = None, /) -> T:
        """Sends a call."""


async def send_all(run: AsyncRun, calls: Iterable[Call[None]], within: float | None = None) -> list[Refused]:
    """Sends calls about receipts; returns those that were refused."""
    refused: list[Refused] = []
    for call in calls:
        try:
            await run(call, within)
        except ClaimLost as error:
            if not error.refused:
                raise
            refused.extend(error.refused)
    return refused


class AsyncKeeper:
    """Renews claims, and acknowledges those that are finished, in one task, which runs while something is held.

    An unexpected error in it goes to the event loop's exception handler, and what it was about is tried again.

    Args:
        run: Sends a call.
        clock: Monotonic seconds.
    """

    def __init__(self, run: AsyncRun, clock: Callable[[], float]) -> None:
        self._run = run
        self._clock = clock
        self.holding = Holding(clock)
        self._task: asyncio.Task[None] | None = None
        self._work: Work | None = None
        self._wakes = 0.0
        self._closed = False

    def keep(self, holds: Sequence[Hold]) -> None:
        """Renews claims of one request from now on.

        Raises:
            InvalidArgument: The client is closed.
        """
        if self._closed:
            raise InvalidArgument("the client is closed")
        if holds:
            self.wake_by(holds[0].due)

    def wake_by(self, due: float) -> None:
        """Has the task look at the claims at a time, if it would sleep longer."""
        import asyncio  # noqa: PLC0415 - the caller has loaded it

        if self._task is None or self._task.done() or (self._work is None and due < self._wakes):
            self._stop()
            self._wakes = due
            self._task = asyncio.get_running_loop().create_task(self._serve())

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Stops renewing; what is finished is acknowledged, and the rest released, as far as that goes in some seconds.

        A loop that was left does the same, but Python may end it only after its client. A renewal that is under way may
        end, for what it renews is released once more then.
        """
        import asyncio  # noqa: PLC0415 - the caller has loaded it

        self._closed = True
        end = self._clock() + LEAVING
        try:
            for call in self.holding.leave_all():
                left = end - self._clock()
                if left <= 0:
                    break
                with contextlib.suppress(ClientError):
                    await self._run(call, left)
            if self._task is not None and self._work is not None and self.holding.released_again(self._work):
                await asyncio.wait({self._task}, timeout=max(0.0, end - self._clock()))
        finally:
            self._stop()

    async def _serve(self) -> None:
        """Is the task."""
        import asyncio  # noqa: PLC0415 - it is loaded

        while (pause := self.holding.pause()) is not None:
            self._wakes = self._clock() + pause
            if pause:
                await asyncio.sleep(pause)
                continue
            self._work = self.holding.work()
            try:
                if self._work is not None:
                    await self._do(self._work)
            finally:
                self._work = None

    async def _do(self, work: Work) -> None:
        asked = self._clock()
        try:
            refused = await send_all(self._run, work.calls, work.within)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other claims are to be renewed
            self.holding.failed(work, error)
            _report(error)
        else:
            self.holding.done(work, asked, [each.receipt for each in refused])
        for call in self.holding.released_again(work):
            try:
                await self._run(call, work.again_within)
            except Exception as error:  # noqa: BLE001 - the message is delivered when its claim expires
                _report(error)


def _report(error: Exception) -> None:
    """Says what would have ended the task, unless the service or the network is the cause."""
    import asyncio  # noqa: PLC0415 - it is loaded

    if not isinstance(error, ClientError):
        about = {"message": "queuey: an error while claims were renewed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(about)


class AsyncJob(HeldJob):
    """A claimed message, for async code; see :class:`queuey.client.Job`.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         async for job in client.job_queue("orders").claim(idle=0):
        ...             print(job.body)
        ...             await job.ack()
        >>> asyncio.run(main())
        one apple
        two eggs
    """

    def __init__(
        self, claimed: Claimed, hold: Hold, holding: Holding, clock: Callable[[], float], run: AsyncRun
    ) -> None:
        super().__init__(claimed, hold, holding, clock)
        self._run = run

    async def ack(self) -> None:
        """Acknowledges the message; see :meth:`Job.ack`."""
        with self._acknowledging():
            await self._send(claim_calls.acknowledge(self.hold.queue, [self.receipt]))

    async def release(
        self, delay: float | None = None, reason: ReleaseReason | None = None, *, retry: bool = True
    ) -> None:
        """Releases the message, now or after ``delay`` seconds; see :meth:`Job.release`."""
        calls = list(claim_calls.release(self.hold.queue, [self.receipt], delay, reason, retry))
        with self._releasing(delay, reason):
            await self._send(calls)

    async def renew(self, ttl: float | None = None) -> None:
        """Renews the claim now; see :meth:`Job.renew`."""
        asked, seconds = self._clock(), self.hold.ttl if ttl is None else ttl
        await self._send(claim_calls.renew(self.hold.queue, [self.receipt], seconds))
        self._holding.renewed(self.hold, asked, seconds)

    async def set_state(self, state: object) -> None:
        """Says how far the work has come; see :meth:`Job.set_state`."""
        await self._send(claim_calls.set_states(self.hold.queue, {self.receipt: state}))

    async def _send(self, calls: Iterable[Call[None]]) -> None:
        try:
            for call in calls:
                await self._run(call)
        except ClientError as error:
            self._holding.refused([self.hold], error)
            raise


class AsyncJobQueue(ClaimedQueues):
    """A queue as a job queue, for async code on asyncio; see :class:`queuey.client.JobQueue`.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         jobs = client.job_queue("orders")
        ...         claimed = await jobs.receive(10)
        ...         return len(claimed), await jobs.ack(claimed)
        >>> asyncio.run(main())
        (2, [])

    Attributes:
        queues: Their names, in order of preference: a claim takes messages of the first that has any.
    """

    def __init__(
        self, queues: str | Iterable[str], run: AsyncRun, keeper: AsyncKeeper, policy: RetryPolicy, timing: AsyncTiming
    ) -> None:
        super().__init__(queues)
        self._run = run
        self._keeper = keeper
        self._policy = policy
        self._timing = timing

    async def claim(
        self,
        *,
        idle: float | None = None,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ClaimOptions],
    ) -> AsyncGenerator[AsyncJob, None]:
        """Iterates over jobs; see :meth:`JobQueue.claim`."""
        timing, holding = self._timing, self._keeper.holding
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        loop = Claiming(self.queues, idle, patient, timing.clock, options)
        holds: list[Hold] = []
        try:
            while True:
                holding.postpone(loop.to_acknowledge())
                try:
                    claimed = await self._run(loop.call())
                except ClientError as error:
                    if not holding.refused(loop.finished, error):
                        await timing.sleep(loop.pause_after(error))
                    continue
                holding.settle(loop.finished, [each.receipt for each in claimed.refused])
                loop.acknowledged()
                holds = [holding.add(each.queue, each.receipt, loop.ttl, loop.asked) for each in claimed]
                self._keeper.keep(holds)
                for each, hold in zip(claimed, holds, strict=True):
                    await self._leave(holding.expired(hold, holds))
                    if hold.state != "held":
                        continue
                    yield AsyncJob(each, hold, holding, timing.clock, self._run)
                    await self._leave(holding.end(hold))
                    urgent = loop.worked(hold)
                    if hold is holds[-1]:
                        break  # What is finished goes along with the next claim.
                    if urgent:
                        await self._acknowledge(loop)
                    else:
                        self._keeper.wake_by(hold.due)
                pause = loop.pause(len(claimed))
                if pause is None:
                    return
                if pause:
                    await timing.sleep(pause)
        finally:
            await self._leave(holds)

    async def run(
        self,
        handle: Callable[[AsyncJob], object],
        *,
        on_error: OnError = "retry",
        retry_delay: Callable[[int], float] | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        """Handles jobs one after another, as a rule with a coroutine function; see :meth:`JobQueue.run`."""
        check_on_error(on_error)
        async with contextlib.aclosing(self.claim(**options)) as loop:
            async for job in loop:
                try:
                    with tracing.handling(job.queue, job.message):
                        result = handle(job)
                        if isawaitable(result):
                            await result
                except Exception as error:
                    if job.held:
                        with job.failing(error):
                            await job.release(retry_delay(job.deliveries) if retry_delay else None, error)
                    if on_error == "raise":
                        raise

    async def receive(
        self,
        limit: int = 10,
        *,
        ttl: float = 30.0,
        wait: float = 0.0,
        partitions: Partitions = "*",
        acknowledge: Claim | Iterable[Claim] = (),
    ) -> Received:
        """Claims messages once, which nothing renews; see :meth:`JobQueue.receive`."""
        joined, rest = claim_calls.first_receipts(claim_calls.receipts_of(self.queues, acknowledge))
        refused = await send_all(self._run, claim_calls.each_queue(claim_calls.acknowledge, rest))
        received = await self._run(claim_calls.claim(self.queues, limit, ttl, wait, partitions, joined))
        received.refused += refused
        return received

    async def take(self, limit: int = 1, *, ttl: float = 30.0, wait: float = 0.0) -> list[AsyncJob]:
        """Claims messages once, for a program that handles several at a time.

        They are renewed until each is acknowledged or released, or passed to :meth:`finish` or :meth:`leave`. What was
        finished is acknowledged by the same request. The arguments are those of :meth:`receive`.
        """
        holding, asked = self._keeper.holding, self._timing.clock()
        finished = holding.finished(self.queues)[:RECEIPTS_PER_CALL]
        holding.postpone(finished)
        try:
            claimed = await self._run(
                claim_calls.claim(self.queues, limit, ttl, wait, "*", receipts_by_queue(finished))
            )
        except ClientError as error:
            holding.refused(finished, error)
            raise
        holding.settle(finished, [each.receipt for each in claimed.refused])
        holds = [holding.add(each.queue, each.receipt, ttl, asked) for each in claimed]
        self._keeper.keep(holds)
        pairs = zip(claimed, holds, strict=True)
        return [AsyncJob(each, hold, holding, self._timing.clock, self._run) for each, hold in pairs]

    def finish(self, jobs: Iterable[AsyncJob]) -> None:
        """Has jobs of :meth:`take` acknowledged: by the next call of it, or in half a second."""
        for job in jobs:
            self._keeper.holding.finish(job.hold)
            self._keeper.wake_by(job.hold.due)

    async def settle(self) -> None:
        """Acknowledges what was passed to :meth:`finish`, within 5 seconds; what cannot be is delivered again."""
        await self._leave(self._keeper.holding.finished(self.queues))

    async def leave(self, jobs: Iterable[AsyncJob]) -> None:
        """Acknowledges those jobs of :meth:`take` that are finished, and releases the others, within 5 seconds each."""
        await self._leave([job.hold for job in jobs])

    async def ack(self, claims: Claim | Iterable[Claim]) -> list[Refused]:
        """Says that messages are done; see :meth:`JobQueue.ack`."""
        return await send_all(self._run, self._each(claim_calls.acknowledge, claims))

    async def renew(self, claims: Claim | Iterable[Claim], ttl: float = 30.0) -> list[Refused]:
        """Keeps claims for ``ttl`` seconds from now on; see :meth:`JobQueue.renew`."""
        return await send_all(self._run, self._each(claim_calls.renew, claims, ttl))

    async def release(
        self,
        claims: Claim | Iterable[Claim],
        delay: float | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
    ) -> list[Refused]:
        """Gives messages back, now or after ``delay`` seconds; see :meth:`JobQueue.release`."""
        return await send_all(self._run, self._each(claim_calls.release, claims, delay, reason, retry))

    async def set_states(self, states: Iterable[tuple[Claim, object]]) -> list[Refused]:
        """Says how far the work on messages has come; see :meth:`JobQueue.set_states`."""
        return await send_all(self._run, claim_calls.states_of(self.queues, states))

    async def release_all(self) -> None:
        """Gives back everything that is claimed from the queue, by whomever."""
        await self._run(claim_calls.release_all(self.name))

    async def counts(self) -> ClaimCounts:
        """Returns how many messages are claimed, and how many wait to be delivered again."""
        return await self._run(claim_calls.counts(self.name))

    async def size(self, limit: int | None = None) -> QueueSize:
        """Returns how many messages are not acknowledged, counted exactly up to ``limit``."""
        return await self._run(claim_calls.size(self.name, limit))

    async def backlog(self, limit: int | None = None) -> Backlog:
        """Returns how much is to be done: what waits, is claimed, has failed before, and is a dead letter.

        What waits is counted exactly up to ``limit`` (10,000), and estimated beyond.
        """
        return await self._run(claim_calls.backlog(self.name, limit))

    async def outstanding(self, limit: int = 100, *, states: bool = False) -> list[OutstandingJob]:
        """Returns who has which messages; see :meth:`JobQueue.outstanding`."""
        return await self._run(claim_calls.outstanding(self.name, limit, states))

    async def peek(self, limit: int = 10) -> list[Message]:
        """Returns the oldest messages that are not acknowledged, and claims nothing."""
        return await self._run(claim_calls.peek(self.name, limit))

    async def _acknowledge(self, loop: Claiming) -> None:
        while holds := loop.to_acknowledge():
            self._keeper.holding.postpone(holds)
            try:
                calls = claim_calls.each_queue(claim_calls.acknowledge, receipts_by_queue(holds))
                refused = await send_all(self._run, calls)
            except ClientError as error:
                if not self._keeper.holding.refused(holds, error):
                    await self._timing.sleep(loop.pause_after(error))
                continue
            self._keeper.holding.settle(holds, [each.receipt for each in refused])
            loop.acknowledged()

    async def _leave(self, holds: list[Hold]) -> None:
        for calls in self._keeper.holding.leave(holds) if holds else ():
            with contextlib.suppress(ClientError):
                await send_all(self._run, calls, LEAVING)
