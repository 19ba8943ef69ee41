"""A queue as a job queue, for threads."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing, suppress
from inspect import iscoroutinefunction
from typing import Unpack

from queuey.client.calls import claim_calls, tracing
from queuey.client.calls.call import Call
from queuey.client.calls.claim_calls import Claim, ReleaseReason
from queuey.client.calls.read_calls import Partitions
from queuey.client.claims.claiming import (
    ClaimedQueues,
    Claiming,
    ClaimOptions,
    LoopOptions,
    OnError,
    check_on_error,
)
from queuey.client.claims.held import LEAVING, HeldJob, Hold, Holding, receipts_by_queue
from queuey.client.claims.keeper import Keeper, SendCall, send_all
from queuey.client.claims.results import Backlog, ClaimCounts, Claimed, OutstandingJob, QueueSize, Received, Refused
from queuey.client.errors import ClientError, InvalidArgument
from queuey.client.http.attempts import Notice, Patience, Timing
from queuey.client.http.retry import RetryPolicy
from queuey.client.results import Message


class Job(HeldJob):
    """A claimed message. The claim is renewed in the background until the loop asks for the next job.

    Example:
        >>> for job in client.job_queue("orders").claim(idle=0):
        ...     if job.deliveries > 3:
        ...         job.ack()  # give up
        ...     elif job.body == "two eggs":
        ...         job.release(delay=60)
        >>> client.job_queue("orders").counts().claimed
        1

    Attributes:
        message, body: The message, and its body alone.
        queue: The name of the queue that it is from.
        receipt: Names this claim.
        deliveries: Number of deliveries of the message, including this one.
        lost: Whether another caller may have the message, because the claim could not be renewed in time. A long
            handler can check it between two steps and stop. Once it was true it stays so for this job, and the loop
            releases the message when its body ends. :meth:`ack` still acknowledges it.
    """

    def __init__(
        self, claimed: Claimed, hold: Hold, holding: Holding, clock: Callable[[], float], run: SendCall
    ) -> None:
        super().__init__(claimed, hold, holding, clock)
        self._run = run

    def ack(self) -> None:
        """Acknowledges the message: it is not delivered again. The loop does this at its next turn.

        If this fails because the service is away, the loop tries it again.

        Raises:
            ClaimLost: It was delivered to another caller.
        """
        with self._acknowledging():
            self._send(claim_calls.acknowledge(self.hold.queue, [self.receipt]))

    def release(self, delay: float | None = None, reason: ReleaseReason | None = None, *, retry: bool = True) -> None:
        """Releases the message: it is delivered again, now or after a time.

        If this fails because the service is away, the message is delivered again when its claim expires.

        Args:
            delay: Seconds, at most 43,200, however long the claim would have lasted. None: at once, or with a reason
                as the queue's ``backoff`` says.
            reason: Why: an error or a text. ``queuey explain`` shows it, and a dead letter has the last ten.
            retry: False: the message becomes a dead letter now. In a queue of dead letters it is delivered again.

        Raises:
            ClaimLost: It was already delivered to another caller.
        """
        calls = list(claim_calls.release(self.hold.queue, [self.receipt], delay, reason, retry))
        with self._releasing(delay, reason):
            self._send(calls)

    def renew(self, ttl: float | None = None) -> None:
        """Renews the claim now. The loop also renews it automatically.

        Args:
            ttl: Seconds from now on; None: those of the loop.

        Raises:
            ClaimLost: It was delivered to another caller.
        """
        asked, seconds = self._clock(), self.hold.ttl if ttl is None else ttl
        self._send(claim_calls.renew(self.hold.queue, [self.receipt], seconds))
        self._holding.renewed(self.hold, asked, seconds)

    def set_state(self, state: object) -> None:
        """Says how far the work has come: ``queuey jobs`` and ``queuey explain`` show it until the message is done.

        Args:
            state: Any JSON value of up to 4,096 bytes. It takes the place of the one before.

        Raises:
            ClaimLost: The message was already delivered to another caller.
            InvalidRequest: The state is too long. The claim is as it was.

        Example:
            >>> for job in client.job_queue("orders").claim(idle=0):
            ...     job.set_state({"done": 3, "of": 10})
            ...     [one.state for one in client.job_queue("orders").outstanding(states=True)]
            [{'done': 3, 'of': 10}]
            [{'done': 3, 'of': 10}]
        """
        self._send(claim_calls.set_states(self.hold.queue, {self.receipt: state}))

    def _send(self, calls: Iterable[Call[None]]) -> None:
        try:
            for call in calls:
                self._run(call)
        except ClientError as error:
            self._holding.refused([self.hold], error)
            raise


class JobQueue(ClaimedQueues):
    """A queue as a job queue: each message is delivered to one worker, until a worker acknowledges it.

    Made by :meth:`Client.job_queue <queuey.client.Client.job_queue>`. Safe to use from several threads.

    Attributes:
        queues: Their names, in order of preference: a claim takes messages of the first that has any.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     name = client.create_queue().name
        ...     _ = client.send(name, "to ann")
        ...     jobs = client.job_queue(name)
        ...     for job in jobs.claim(idle=0):
        ...         print(job.body, job.deliveries)
        ...     client.delete_queue(name)
        to ann 1
    """

    def __init__(
        self, queues: str | Iterable[str], run: SendCall, keeper: Keeper, policy: RetryPolicy, timing: Timing
    ) -> None:
        super().__init__(queues)
        self._run = run
        self._keeper = keeper
        self._policy = policy
        self._timing = timing

    def claim(
        self,
        *,
        idle: float | None = None,
        patience: float | None = None,
        notice: Notice | None = None,
        **options: Unpack[ClaimOptions],
    ) -> Generator[Job, None, None]:
        """Iterates over jobs, each claimed for this process alone and renewed while the loop's body runs.

        When the loop asks for the next job, the one before is acknowledged. When the loop is left, by ``break``,
        ``return`` or an error, the present job is delivered again after 1 second, and each further time twice as late,
        up to 60 seconds. Jobs that wait for their turn are delivered again at once. Inside the loop :meth:`Job.ack` and
        :meth:`Job.release` decide about a job by hand.

        Args:
            idle: Seconds without a message after which the loop ends; None: never; 0: when nothing is there now.
            patience: Seconds of uninterrupted failure of the service after which to give up; None: never.
            notice: Called with the error when the service begins to fail, and with None when it answers again.
            options: See :class:`ClaimOptions`.

        Raises:
            ClientError: One that will not pass, such as :class:`QueueNotFound`; or patience has run out.
            RenewalError: No thread can be started that would renew the claims. They are released.
            InvalidArgument: An option cannot be used.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = client.create_queue().name
            ...     _ = client.send_many(name, ["good", "bad"])
            ...     for job in client.job_queue(name).claim(idle=0):
            ...         if job.body == "bad":
            ...             job.release(delay=600)
            ...     counts = client.job_queue(name).counts()
            ...     client.delete_queue(name)
            >>> counts.claimed
            1
        """
        timing, holding = self._timing, self._keeper.holding
        patient = Patience(self._policy, patience, timing.clock, timing.draw, notice)
        loop = Claiming(self.queues, idle, patient, timing.clock, options)
        holds: list[Hold] = []
        try:
            while True:
                holding.postpone(loop.to_acknowledge())
                try:
                    claimed = self._run(loop.call())
                except ClientError as error:
                    if not holding.refused(loop.finished, error):
                        timing.sleep(loop.pause_after(error))
                    continue
                holding.settle(loop.finished, [each.receipt for each in claimed.refused])
                loop.acknowledged()
                holds = [holding.add(each.queue, each.receipt, loop.ttl, loop.asked) for each in claimed]
                self._keeper.keep(holds)
                for each, hold in zip(claimed, holds, strict=True):
                    self._leave(holding.expired(hold, holds))
                    if hold.state != "held":
                        continue
                    yield Job(each, hold, holding, timing.clock, self._run)
                    self._leave(holding.end(hold))
                    urgent = loop.worked(hold)
                    if hold is holds[-1]:
                        break  # What is finished goes along with the next claim.
                    if urgent:
                        self._acknowledge(loop)
                    else:
                        self._keeper.wake_by(hold.due)
                pause = loop.pause(len(claimed))
                if pause is None:
                    return
                if pause:
                    timing.sleep(pause)
        finally:
            self._leave(holds)

    def run(
        self,
        handle: Callable[[Job], object],
        *,
        on_error: OnError = "retry",
        retry_delay: Callable[[int], float] | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        """Handles jobs one after another: a job is acknowledged when ``handle`` returns.

        When it raises, the job is released with the error as the reason, and the next one is handled. What ``handle``
        has acknowledged or released by itself stays so.

        Args:
            handle: Does the work of a job.
            on_error: ``raise`` ends this with the error, after the job was released.
            retry_delay: Returns the seconds until a job is delivered again, given how often it was delivered. None: the
                queue's ``backoff`` decides.
            options: As for :meth:`claim`.

        Raises:
            ClientError, RenewalError, InvalidArgument: As :meth:`claim`.
            Exception: That of ``handle``, if ``on_error`` is ``raise``.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = client.create_queue().name
            ...     _ = client.send_many(name, ["1", "0"])
            ...     client.job_queue(name).run(lambda job: print(1 / int(job.body)), idle=0)
            ...     waits = client.job_queue(name).counts().claimed
            ...     client.delete_queue(name)
            1.0
            >>> waits
            1
        """
        check_on_error(on_error)
        if iscoroutinefunction(handle):
            raise InvalidArgument("handle is a coroutine function, which nothing would await here: use AsyncClient")
        with closing(self.claim(**options)) as loop:
            for job in loop:
                try:
                    with tracing.handling(job.queue, job.message):
                        handle(job)
                except Exception as error:
                    if job.held:
                        with job.failing(error):
                            job.release(retry_delay(job.deliveries) if retry_delay else None, error)
                    if on_error == "raise":
                        raise

    def receive(
        self,
        limit: int = 10,
        *,
        ttl: float = 30.0,
        wait: float = 0.0,
        partitions: Partitions = "*",
        acknowledge: Claim | Iterable[Claim] = (),
    ) -> Received:
        """Claims messages once, for a program that acknowledges them itself. Nothing renews these.

        Args:
            limit: Messages at most, 1 to 1,000.
            ttl: Seconds, up to 43,200, after which a message that is not acknowledged is delivered again.
            wait: Seconds, up to 20, to wait for messages if there are none.
            partitions: ``"*"`` for all, a number, or several.
            acknowledge: Receipts, or what this method returned: they are acknowledged by the same request, before
                it waits. ``refused`` of the result names those whose messages were delivered to another caller.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = client.create_queue().name
            ...     _ = client.send_many(name, ["a", "b"])
            ...     jobs = client.job_queue(name)
            ...     claimed = jobs.receive(100)
            ...     refused = jobs.ack(claimed)
            ...     client.delete_queue(name)
            >>> len(claimed), refused
            (2, [])
        """
        joined, rest = claim_calls.first_receipts(claim_calls.receipts_of(self.queues, acknowledge))
        refused = send_all(self._run, claim_calls.each_queue(claim_calls.acknowledge, rest))
        received = self._run(claim_calls.claim(self.queues, limit, ttl, wait, partitions, joined))
        received.refused += refused
        return received

    def ack(self, claims: Claim | Iterable[Claim]) -> list[Refused]:
        """Acknowledges messages: they are not delivered again.

        Args:
            claims: Receipts, or what :meth:`receive` returned.

        Returns:
            Those that were refused, because another caller got the messages meanwhile. All others are done.
        """
        return send_all(self._run, self._each(claim_calls.acknowledge, claims))

    def renew(self, claims: Claim | Iterable[Claim], ttl: float = 30.0) -> list[Refused]:
        """Keeps claims for ``ttl`` seconds from now on, if they would not last longer anyway; see :meth:`ack`."""
        return send_all(self._run, self._each(claim_calls.renew, claims, ttl))

    def release(
        self,
        claims: Claim | Iterable[Claim],
        delay: float | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
    ) -> list[Refused]:
        """Releases messages: they are delivered again, at once or after ``delay`` seconds; see :meth:`ack`.

        ``delay``, ``reason`` and ``retry`` are those of :meth:`Job.release`.
        """
        return send_all(self._run, self._each(claim_calls.release, claims, delay, reason, retry))

    def set_states(self, states: Iterable[tuple[Claim, object]]) -> list[Refused]:
        """Says how far the work on messages has come; see :meth:`Job.set_state`.

        Args:
            states: Receipts, or what :meth:`receive` returned, each with its state.

        Returns:
            Those that were refused, because another caller got the messages meanwhile. All others are set.
        """
        return send_all(self._run, claim_calls.states_of(self.queues, states))

    def release_all(self) -> None:
        """Gives back everything that is claimed from the queue, by whomever."""
        self._run(claim_calls.release_all(self.name))

    def counts(self) -> ClaimCounts:
        """Returns how many messages are claimed, and how many wait to be delivered again."""
        return self._run(claim_calls.counts(self.name))

    def size(self, limit: int | None = None) -> QueueSize:
        """Returns how many messages are not acknowledged, counted exactly up to ``limit``."""
        return self._run(claim_calls.size(self.name, limit))

    def backlog(self, limit: int | None = None) -> Backlog:
        """Returns how much is to be done: what waits, is claimed, has failed before, and is a dead letter.

        What waits is counted exactly up to ``limit`` (10,000), and estimated beyond.
        """
        return self._run(claim_calls.backlog(self.name, limit))

    def outstanding(self, limit: int = 100, *, states: bool = False) -> list[OutstandingJob]:
        """Returns who has which messages, at most 1,000: those first whose claims have ended or end first.

        With ``states`` it also returns what they say of them (see :meth:`Job.set_state`), and at most 100.
        """
        return self._run(claim_calls.outstanding(self.name, limit, states))

    def peek(self, limit: int = 10) -> list[Message]:
        """Returns the oldest messages that are not acknowledged, claimed or not, and claims nothing."""
        return self._run(claim_calls.peek(self.name, limit))

    def _acknowledge(self, loop: Claiming) -> None:
        """Acknowledges what the loop has finished; puts up with failures as the loop does."""
        while holds := loop.to_acknowledge():
            self._keeper.holding.postpone(holds)
            try:
                calls = claim_calls.each_queue(claim_calls.acknowledge, receipts_by_queue(holds))
                refused = send_all(self._run, calls)
            except ClientError as error:
                if not self._keeper.holding.refused(holds, error):
                    self._timing.sleep(loop.pause_after(error))
                continue
            self._keeper.holding.settle(holds, [each.receipt for each in refused])
            loop.acknowledged()

    def _leave(self, holds: list[Hold]) -> None:
        """Acknowledges and releases what a loop leaves behind or does not begin; what cannot be released expires."""
        for calls in self._keeper.holding.leave(holds) if holds else ():
            with suppress(ClientError):
                send_all(self._run, calls, LEAVING)
