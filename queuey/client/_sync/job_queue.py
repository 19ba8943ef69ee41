"""A queue as a job queue."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Literal, Unpack

from queuey.api.claims import Backlog, ClaimCounts, QueueSize
from queuey.api.jobs import JobInfo
from queuey.client._sync.job import Job, send_all
from queuey.client.calls import claim_calls, job_calls, message_calls, queue_calls, tracing
from queuey.client.calls.call import Call, MessageLocation, Seconds
from queuey.client.calls.claim_calls import Claim, ReleaseReason
from queuey.client.calls.message_calls import Partitions
from queuey.client.claims.claiming import Claiming, ClaimOptions, LoopOptions, OnError, check_on_error
from queuey.client.claims.handlers import keep_result, sync_handler
from queuey.client.claims.held import (
    LEAVING,
    HeldClaim,
    acknowledgements,
    log,
)
from queuey.client.claims.renewers import ClaimRenewer
from queuey.client.errors import ClientError, InvalidAnswer, InvalidArgument
from queuey.client.http.attempts import Notice, Patience
from queuey.client.results import Message, OutstandingJob, Received, Refused

if TYPE_CHECKING:
    from queuey.client._sync.sender import Sender


class JobQueue:
    """A queue as a job queue: each message is delivered to one worker, until a worker acknowledges it.

    Made by :meth:`Client.job_queue <queuey.client.Client.job_queue>`. Safe to use from several threads.

    Attributes:
        queues: Their names, in order of preference: a claim is for messages of the first that has any. A queue that is
            missing, or that the credential may not claim from, is logged and passed over.

    Example:
        >>> from queuey.client import Client
        >>> with Client() as client:
        ...     name = (client.create_queue()).name
        ...     _ = client.send(name, "to ann")
        ...     jobs = client.job_queue(name)
        ...     for job in jobs.claim(idle=0):
        ...         print(job.body, job.deliveries)
        ...     client.delete_queue(name)
        to ann 1
    """

    def __init__(self, queues: str | Iterable[str], sender: Sender, renewer: ClaimRenewer) -> None:
        self.queues = claim_calls.names_of(queues)
        self._sender = sender
        self._renewer = renewer
        self._passed_over: set[str] = set()

    def __repr__(self) -> str:
        """Names the queues."""
        return f"<{type(self).__name__} {', '.join(self.queues)}>"

    @property
    def name(self) -> str:
        """The name of the one queue.

        Raises:
            InvalidArgument: There are several.
        """
        if len(self.queues) > 1:
            raise InvalidArgument(f"This is about one queue, not {', '.join(self.queues)}: use job_queue(name)")
        return self.queues[0]

    def claim(
        self,
        *,
        idle: Seconds | None = None,
        patience: Seconds | None = None,
        notice: Notice | None = None,
        **options: Unpack[ClaimOptions],
    ) -> Generator[Job, None, None]:
        """Iterates over jobs, each claimed for this process alone and renewed while the loop's body runs.

        When the loop asks for the next job, the one before is acknowledged. When the loop is left, by ``break``,
        ``return`` or an error, the present job is delivered again after 1 second, and each further time twice as late,
        up to 60 seconds. Jobs that wait for their turn are delivered again at once. The loop's body may call
        :meth:`Job.ack` or :meth:`Job.release` itself.

        Args:
            idle: Seconds without a message after which the loop ends; None: never; 0: when nothing is there now.
            patience: Max seconds of uninterrupted failure of the service; None: no limit.
            notice: Called with the error when the service begins to fail, and with None when it answers again.
            options: See :class:`ClaimOptions`.

        Raises:
            ClientError: One that will not pass, such as :class:`~queuey.client.QueueNotFound`; or patience has run out.
            RenewalError: No thread can be started that would renew the claims. They are released.
            InvalidArgument: An option cannot be used.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = (client.create_queue()).name
            ...     _ = client.send_many(name, ["good", "bad"])
            ...     for job in client.job_queue(name).claim(idle=0):
            ...         if job.body == "bad":
            ...             job.release(delay=600)
            ...     counts = client.job_queue(name).counts()
            ...     print(counts.retrying)
            ...     client.delete_queue(name)
            1
        """
        timing, claims = self._sender.timing, self._renewer.claims
        patient = Patience(self._sender.policy, patience, timing, notice)
        loop = Claiming(self.queues, idle, timing.clock, options)
        batch: list[HeldClaim] = []
        try:
            while True:
                claims.postpone(loop.to_acknowledge())
                try:
                    claimed = self._sender.run(loop.call())
                except ClientError as error:
                    if not claims.refused(loop.finished, error):
                        timing.sleep(patient.pause_after(error))
                    continue
                self._passed_over = claims.answered(loop.finished, claimed, self._passed_over)
                loop.acknowledged()
                patient.restored()
                batch = [claims.add(each.queue, each.receipt, loop.ttl, loop.asked) for each in claimed]
                self._renewer.keep(batch)
                for each, claim in zip(claimed, batch, strict=True):
                    self._leave(claims.expired(claim, batch))
                    if claim.state != "held":
                        continue
                    yield Job(each, claim, claims, self._sender)
                    self._leave(claims.finish_unless_lost(claim))
                    urgent = loop.worked(claim)
                    if claim is batch[-1]:
                        break  # The next claim acknowledges what is finished.
                    if urgent:
                        self._acknowledge(loop, patient)
                    else:
                        self._renewer.wake_by(claim.due)
                pause = loop.pause(len(claimed))
                if pause is None:
                    return
                if pause:
                    timing.sleep(pause)
        finally:
            self._leave(batch)

    def run(
        self,
        handle: Callable[[Job], object],
        *,
        on_error: OnError = "retry",
        retry_delay: Callable[[int], float] | None = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        """Handles jobs one after another: a job is acknowledged when ``handle`` returns.

        What ``handle`` returns is the job's result, if the queue has a ``result_ttl``.

        When it raises, the job is released with the error as the reason, and the next one is handled. A job that
        ``handle`` has acknowledged or released by itself stays so.

        Args:
            handle: A function that handles a job.
            on_error: ``raise`` ends this with the error, after the job was released.
            retry_delay: Returns the seconds until a job is delivered again, given its number of deliveries. None: the
                queue's ``backoff`` decides.
            options: As for :meth:`claim`.

        Raises:
            ClientError, RenewalError, InvalidArgument: As :meth:`claim`.
            Exception: That of ``handle``, if ``on_error`` is ``raise``.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = (client.create_queue()).name
            ...     _ = client.send_many(name, ["1", "0"])
            ...     client.job_queue(name).run(lambda job: print(1 / int(job.body)), idle=0)
            ...     counts = client.job_queue(name).counts()
            ...     print(counts.retrying)
            ...     client.delete_queue(name)
            1.0
            1
        """
        check_on_error(on_error)
        call = sync_handler(handle)
        with closing(self.claim(**options)) as jobs:
            for job in jobs:
                try:
                    with tracing.handling(job.queue, job.message):
                        keep_result(job, call(job))
                except Exception as error:
                    if job.held:
                        _release_failed(job, error, retry_delay(job.deliveries) if retry_delay else None)
                    if on_error == "raise":
                        raise

    def receive(
        self,
        limit: int = 10,
        *,
        ttl: Seconds = 30.0,
        wait: Seconds = 0.0,
        partitions: Partitions = "*",
        acknowledge: Claim | Iterable[Claim] = (),
    ) -> Received:
        """Claims messages once, for a program that acknowledges them itself. Nothing renews these.

        Args:
            limit: Max messages, 1 to 1,000.
            ttl: Seconds, up to 43,200, after which a message that is not acknowledged is delivered again.
            wait: Seconds, up to 20, to wait for messages if there are none.
            partitions: ``"*"`` for all, a number, or several.
            acknowledge: Receipts, or messages that this method returned: they are acknowledged by the same request,
                before it waits. ``refused`` of the result has those whose messages were delivered to another caller.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = (client.create_queue()).name
            ...     _ = client.send_many(name, ["a", "b"])
            ...     jobs = client.job_queue(name)
            ...     claimed = jobs.receive(100)
            ...     print(len(claimed), jobs.ack(claimed))
            ...     client.delete_queue(name)
            2 []
        """
        joined, rest = claim_calls.first_receipts(claim_calls.receipts_of(self.queues, acknowledge))
        refused = send_all(self._sender.run, claim_calls.each_queue(claim_calls.acknowledge, rest))
        received = self._sender.run(claim_calls.claim(self.queues, limit, ttl, wait, partitions, joined))
        received.refused += refused
        return received

    def ack(self, claims: Claim | Iterable[Claim], *, results: Mapping[str, object] | None = None) -> list[Refused]:
        """Acknowledges messages: they are not delivered again.

        Args:
            claims: Receipts, or messages that :meth:`receive` returned.
            results: Results of some of the jobs, by receipt; see :meth:`Job.set_result`.

        Returns:
            The refused ones, because another caller got the messages meanwhile. All others are done.
        """
        encoded = {receipt: job_calls.encoded_result(result) for receipt, result in (results or {}).items()}
        kept = {receipt: result for receipt, result in encoded.items() if result is not None}
        return send_all(self._sender.run, self._calls(claim_calls.acknowledge, claims, kept))

    def renew(self, claims: Claim | Iterable[Claim], ttl: Seconds = 30.0) -> list[Refused]:
        """Keeps claims for ``ttl`` seconds from now on, if they would not last longer anyway; see :meth:`ack`."""
        return send_all(self._sender.run, self._calls(claim_calls.renew, claims, ttl))

    def release(
        self,
        claims: Claim | Iterable[Claim],
        delay: Seconds | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
    ) -> list[Refused]:
        """Releases messages: they are delivered again, at once or after ``delay`` seconds; see :meth:`ack`.

        ``delay``, ``reason`` and ``retry`` are those of :meth:`Job.release`.
        """
        return send_all(self._sender.run, self._calls(claim_calls.release, claims, delay, reason, retry))

    def set_states(self, states: Iterable[tuple[Claim, object]]) -> list[Refused]:
        """Sets the progress of the work on messages; see :meth:`Job.set_state`.

        Args:
            states: Receipts, or messages that :meth:`receive` returned, each with its state.

        Returns:
            The refused ones, because another caller got the messages meanwhile. All others are set.
        """
        return send_all(self._sender.run, claim_calls.states_of(self.queues, states))

    def pause(self) -> None:
        """Pauses the claims of the queue: nobody gets a message of it. Posts, reads and live claims go on.

        Needs the right ``admin``.

        Raises:
            InvalidAnswer: The service is too old to pause claims.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     jobs = client.job_queue("orders")
            ...     jobs.pause()
            ...     print(len(jobs.receive()))
            ...     jobs.resume()
            ...     print(len(jobs.receive()))
            0
            2
        """
        queue = self._sender.run(queue_calls.update(self.name, {"claims": "paused"}))
        if queue.claims != "paused":
            raise InvalidAnswer(f"Claims of {self.name} are not paused: this needs a newer version of the service.")

    def resume(self) -> None:
        """Ends :meth:`pause`. Claims that wait get messages within some seconds."""
        self._sender.run(queue_calls.update(self.name, {"claims": "open"}))

    def cancel(self, job: MessageLocation) -> Literal["removed", "claimed", "done"]:
        """Cancels a job: it is not delivered any more. Needs the right ``claim``.

        Args:
            job: A receipt of sending, a message, or its partition and id.

        Returns:
            ``removed``: It waited, or was delayed. ``claimed``: A worker has it, and learns of it at the next renewal
            (:attr:`Job.cancelled`); if it fails, it is not delivered again. ``done``: It was done before.

        Raises:
            MessageNotFound: There is no such message.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     receipt = client.send("orders", "three pears", delay=3600)
            ...     print(client.job_queue("orders").cancel(receipt))
            removed
        """
        return (self._sender.run(claim_calls.cancel(self.name, job))).job

    def retry(self, job: MessageLocation) -> Literal["waiting", "claimed", "done"]:
        """Makes a job deliverable now that was released with a delay, or is delayed. Needs the right ``claim``.

        Args:
            job: As for :meth:`cancel`.

        Returns:
            ``waiting``: The next claim can get it. ``claimed``: A worker has it. ``done``: It is done, or was removed.

        Raises:
            MessageNotFound: There is no such message.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     jobs, receipt = client.job_queue("orders"), client.send("orders", "now", delay=3600)
            ...     print(jobs.retry(receipt), [job.message.body for job in jobs.receive()][0])
            waiting now
        """
        return (self._sender.run(claim_calls.retry(self.name, job))).job

    def release_all(self) -> None:
        """Releases all claims of the queue, those of other callers included."""
        self._sender.run(claim_calls.release_all(self.name))

    def counts(self) -> ClaimCounts:
        """Returns how many messages are claimed, are retrying, and wait to be delivered again."""
        return self._sender.run(claim_calls.counts(self.name))

    def size(self, limit: int | None = None) -> QueueSize:
        """Returns how many messages are not acknowledged, counted exactly up to ``limit``."""
        return self._sender.run(claim_calls.size(self.name, limit))

    def backlog(self, limit: int | None = None) -> Backlog:
        """Returns the open work: messages that wait, are delayed, claimed, retrying, and are dead letters.

        Those that wait are counted exactly up to ``limit`` (10,000), and estimated beyond.
        """
        return self._sender.run(claim_calls.backlog(self.name, limit))

    def outstanding(self, limit: int = 100, *, states: bool = False) -> list[OutstandingJob]:
        """Returns delivered messages and their workers, at most 1,000: first those whose claims end first.

        With ``states`` it also returns their states (see :meth:`Job.set_state`), their tasks and last failed
        attempts, and at most 100 messages.
        """
        return self._sender.run(claim_calls.outstanding(self.name, limit, states))

    def status(
        self, jobs: MessageLocation | Iterable[MessageLocation], *, wait: Seconds = 0.0, states: bool = False
    ) -> list[JobInfo]:
        """Returns what became of jobs, by their ids.

        Args:
            jobs: One job or several: ``id``, ``partition:id``, ``(partition, id)``, or what a call returned.
            wait: Seconds, up to 20, to wait until one of the jobs has ended, for up to 100 jobs.
            states: Also return the states that workers have set.
        """
        infos: list[JobInfo] = []
        for call in job_calls.jobs(self.name, message_calls.several(jobs), wait, states=states):
            answer = self._sender.run(call)
            infos += answer
        return infos

    def peek(self, limit: int = 10) -> list[Message]:
        """Returns the oldest messages that are not acknowledged, claimed or not, and claims nothing."""
        return self._sender.run(claim_calls.peek(self.name, limit))

    def _calls(
        self, call: Callable[..., Iterator[Call[None]]], claims: Claim | Iterable[Claim], *given: object
    ) -> Iterator[Call[None]]:
        return claim_calls.each_queue(call, claim_calls.receipts_of(self.queues, claims), *given)

    def _acknowledge(self, loop: Claiming, patient: Patience) -> None:
        """Acknowledges the finished jobs of a loop; waits for the service as the loop does."""
        claims = self._renewer.claims
        while finished := loop.to_acknowledge():
            claims.postpone(finished)
            try:
                refused = send_all(self._sender.run, acknowledgements(finished))
            except ClientError as error:
                if not claims.refused(finished, error):
                    self._sender.timing.sleep(patient.pause_after(error))
                continue
            claims.end(finished, [each.receipt for each in refused])
            loop.acknowledged()
            patient.restored()

    def _leave(self, batch: list[HeldClaim]) -> None:
        """Acknowledges the finished claims and releases the others; one that cannot be released expires."""
        for calls in self._renewer.claims.leave(batch) if batch else ():
            with suppress(ClientError):
                send_all(self._sender.run, calls, LEAVING)


def _release_failed(job: Job, error: Exception, delay: float | None) -> None:
    """Releases a job whose handler has failed. If the service is away, the claim has to expire."""
    log.warning("Handling %r failed, delivery %d: %r", job, job.deliveries, error, exc_info=error)
    try:
        job.release(delay, error)
    except ClientError as failure:
        if not (failure.temporary or job.lost):
            raise
        log.warning("%r could not be released, so its claim has to expire first: %s", job, failure)
