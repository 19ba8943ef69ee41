# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/job_queue.py.
"""Job queues: each message is claimed by one worker."""

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
from queuey.client.claims.handlers import keep_result, make_sync_handler
from queuey.client.claims.held import (
    LEAVE_TIMEOUT,
    MAX_BODY_SECONDS,
    ClaimBatch,
    HeldClaim,
    acknowledge_calls,
    log,
)
from queuey.client.claims.renewers import ClaimRenewer
from queuey.client.errors import ClientError, InvalidArgument
from queuey.client.http.attempts import Notice, Patience
from queuey.client.results import Message, OutstandingJob, Received, Refused

if TYPE_CHECKING:
    from queuey.client._sync.sender import Sender


class JobQueue:
    """A queue as a job queue: each message is delivered to one worker, until a worker acknowledges it.

    Get it from :meth:`Client.job_queue <queuey.client.Client.job_queue>`. Safe to use from several threads.

    Attributes:
        queues: Names of the queues in order of preference. A claim takes messages from the first queue that has any.
            A queue that does not exist, or that the credential may not claim from, is logged and skipped.

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
        self.queues = claim_calls.check_queue_names(queues)
        self._sender = sender
        self._renewer = renewer
        self._passed_over: set[str] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(self.queues)}>"

    @property
    def name(self) -> str:
        """The name of the queue.

        Raises:
            InvalidArgument: The job queue has several queues.
        """
        if len(self.queues) > 1:
            raise InvalidArgument(f"This works on one queue, not on {', '.join(self.queues)}: use job_queue(name)")
        return self.queues[0]

    def claim(
        self,
        *,
        idle: Seconds | None = None,
        patience: Seconds | None = None,
        notice: Notice | None = None,
        **options: Unpack[ClaimOptions],
    ) -> Generator[Job, None, None]:
        """Iterates over jobs. Each is claimed by this process alone and renewed while the loop's body runs.

        When the loop continues, the previous job is acknowledged. When it is left by ``break``, ``return`` or an error,
        the current job is delivered again after 1 second, doubled with each delivery, up to 60. Jobs that the loop has
        not reached are delivered again at once. The body may call :meth:`Job.ack` or :meth:`Job.release`.

        Args:
            idle: Seconds without a message after which the loop ends (0: at the first empty claim). Default: never.
            patience: Max seconds of uninterrupted failure of the service. Unlimited by default.
            notice: Called with the error when the service begins to fail, and with None when it answers again.
            options: See :class:`ClaimOptions`.

        Raises:
            ClientError: A permanent error such as :class:`~queuey.client.QueueNotFound`, or ``patience`` has run out.
            RenewalError: The thread that renews claims cannot be started. The claims are released.
            InvalidArgument: An option is not valid.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     name = (client.create_queue()).name
            ...     _ = client.send_many(name, ["good", "bad"])
            ...     for job in client.job_queue(name).claim(idle=0):
            ...         if job.body == "bad":
            ...             job.release(delay=600)
            ...     print((client.job_queue(name).counts()).retrying)
            ...     client.delete_queue(name)
            1
        """
        sender, timing, claims = self._sender.once, self._sender.timing, self._renewer.claims
        patient = Patience(sender.policy, patience, timing, notice)
        loop = Claiming(self.queues, idle, timing.clock, options)
        batch: list[HeldClaim] = []
        try:
            while True:
                claims.reserve_for_acknowledgement(loop.begin_acknowledgement())
                try:
                    claimed = sender.run(loop.next_call())
                except ClientError as error:
                    if not claims.end_refused(loop.finished, error):
                        timing.sleep(patient.pause_after(error))
                    continue
                self._passed_over = claims.record_answer(loop.finished, claimed, self._passed_over)
                loop.clear_finished()
                patient.record_success()
                shared = ClaimBatch(MAX_BODY_SECONDS if len(claimed) > 1 else None)
                batch = [claims.add(m.queue, m.receipt, loop.ttl, loop.requested_at, shared) for m in claimed]
                self._renewer.keep(batch)
                for message, claim in zip(claimed, batch, strict=True):
                    self._leave(claims.list_expired(claim, batch))
                    claims.begin([claim])
                    self._renewer.wake_by(shared.begin_by)
                    if not claim.begun:
                        continue
                    yield Job(message, claim, claims, self._sender)
                    self._leave(claims.finish_or_return_lost(claim))
                    urgent = loop.record_work(claim)
                    if claim is batch[-1]:
                        break  # The next claim request acknowledges the finished jobs.
                    if urgent:
                        self._acknowledge(sender, loop, patient)
                    else:
                        self._renewer.wake_by(claim.due)
                if (pause := loop.pause_after_claim(batch)) is None:
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
        """Handles jobs one after another. A job is acknowledged when ``handle`` returns.

        The return value of ``handle`` is the job's result if the queue has a ``result_ttl``; a value that cannot be
        one is only logged.

        If ``handle`` raises, the job is released with the error as the reason, and the next job is handled. A job that
        ``handle`` itself has acknowledged or released is left alone.

        Args:
            handle: A function that handles a job.
            on_error: ``raise`` releases the job of a failed handler and raises the error.
            retry_delay: Returns the seconds until a job is delivered again, given its number of deliveries. By default
                the queue's ``backoff`` decides.
            options: As for :meth:`claim`.

        Raises:
            ClientError, RenewalError, InvalidArgument: As for :meth:`claim`.
            Exception: ``handle`` has raised it, and ``on_error`` is ``raise``.

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
        call = make_sync_handler(handle)
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
        """Claims messages once, for a program that acknowledges them itself. Their claims are not renewed.

        Args:
            limit: Max messages, 1 to 1,000.
            ttl: Seconds, up to 43,200, after which a message that is not acknowledged is delivered again.
            wait: Seconds, up to 20, to wait for messages if none is available.
            partitions: ``"*"`` for all, a number, or several.
            acknowledge: Receipts, or messages that this method returned, to be acknowledged by the same request before
                it waits; from the 1,001st of a queue on, by requests before it. The result's ``refused`` lists the
                ones that were delivered to another caller.

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
        joined, rest = claim_calls.split_receipts(claim_calls.receipts_of(self.queues, acknowledge))
        refused = send_all(self._sender.run, claim_calls.each_queue(claim_calls.acknowledge, rest))
        received = self._sender.run(claim_calls.claim(self.queues, limit, ttl, wait, partitions, joined))
        received.refused += refused
        return received

    def ack(self, claims: Claim | Iterable[Claim], *, results: Mapping[str, object] | None = None) -> list[Refused]:
        """Acknowledges messages: they are not delivered again.

        Args:
            claims: Receipts, or messages that :meth:`receive` returned.
            results: Results of jobs, by receipt; see :meth:`Job.set_result`.

        Returns:
            The refused receipts, because another caller got their messages meanwhile. All others are acknowledged.
        """
        encoded = {receipt: job_calls.encode_result(result) for receipt, result in (results or {}).items()}
        kept = {receipt: result for receipt, result in encoded.items() if result is not None}
        return send_all(self._sender.run, self._calls_by_queue(claim_calls.acknowledge, claims, kept))

    def renew(self, claims: Claim | Iterable[Claim], ttl: Seconds = 30.0) -> list[Refused]:
        """Extends claims to ``ttl`` seconds from now, unless they last longer already. Returns refused ones."""
        return send_all(self._sender.run, self._calls_by_queue(claim_calls.renew, claims, ttl))

    def release(
        self,
        claims: Claim | Iterable[Claim],
        delay: Seconds | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
        begun: bool = True,
    ) -> list[Refused]:
        """Releases messages: they are delivered again, at once or after ``delay`` seconds. Returns refused ones.

        The arguments ``delay``, ``reason``, ``retry`` and ``begun`` are those of :meth:`Job.release`.
        """
        calls = self._calls_by_queue(claim_calls.release, claims, delay, reason, retry, begun)
        return send_all(self._sender.run, calls)

    def set_states(self, states: Iterable[tuple[Claim, object]]) -> list[Refused]:
        """Sets the progress of the work on messages; see :meth:`Job.set_state`.

        Args:
            states: Receipts, or messages that :meth:`receive` returned, each with its state.

        Returns:
            The refused receipts, because another caller got their messages meanwhile. All other states are set.
        """
        return send_all(self._sender.run, claim_calls.set_states_by_queue(self.queues, states))

    def pause(self) -> None:
        """Pauses the claims of the queue: workers get no more messages. Sends, reads and existing claims go on.

        Needs the right ``admin``.

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
        self._sender.run(queue_calls.update(self.name, {"claims": "paused"}))

    def resume(self) -> None:
        """Resumes claims after :meth:`pause`. Waiting claims get messages within a few seconds."""
        self._sender.run(queue_calls.update(self.name, {"claims": "open"}))

    def cancel(self, job: MessageLocation) -> Literal["removed", "claimed", "done"]:
        """Cancels a job: it is not delivered any more. Needs the right ``claim``.

        Args:
            job: The receipt of a send, a message, or its partition and id.

        Returns:
            ``removed`` if the job was waiting or delayed. ``claimed`` if a worker has the job: the next renewal sets
            :attr:`Job.cancelled`, and a failed job is not delivered again. ``done`` if the job was already done.

        Raises:
            MessageNotFound: The message does not exist.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     receipt = client.send("orders", "three pears", delay=3600)
            ...     print(client.job_queue("orders").cancel(receipt))
            removed
        """
        return (self._sender.run(claim_calls.cancel(self.name, job))).job

    def retry(self, job: MessageLocation) -> Literal["waiting", "claimed", "done"]:
        """Makes a delayed job, or one that was released with a delay, deliverable now. Needs the right ``claim``.

        Args:
            job: As for :meth:`cancel`.

        Returns:
            ``waiting`` if the next claim can get the job, ``claimed`` if a worker has it, ``done`` if it is done or was
            removed.

        Raises:
            MessageNotFound: The message does not exist.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     jobs, receipt = client.job_queue("orders"), client.send("orders", "now", delay=3600)
            ...     print(jobs.retry(receipt), [job.message.body for job in jobs.receive()][0])
            waiting now
        """
        return (self._sender.run(claim_calls.retry(self.name, job))).job

    def release_all(self) -> None:
        """Releases all claims of the queue, including those of other callers."""
        self._sender.run(claim_calls.release_all(self.name))

    def counts(self) -> ClaimCounts:
        """Counts the messages that are claimed, are retrying, and wait to be delivered again."""
        return self._sender.run(claim_calls.counts(self.name))

    def size(self, limit: int | None = None) -> QueueSize:
        """Returns the number of messages that are not acknowledged, counted exactly up to ``limit``."""
        return self._sender.run(claim_calls.size(self.name, limit))

    def backlog(self, limit: int | None = None) -> Backlog:
        """Counts the open work: messages that are waiting, delayed, claimed, retrying, or dead letters.

        Waiting messages are counted exactly up to ``limit`` (by default 10,000) and estimated beyond.
        """
        return self._sender.run(claim_calls.backlog(self.name, limit))

    def outstanding(self, limit: int = 100, *, states: bool = False) -> list[OutstandingJob]:
        """Returns delivered messages that are not acknowledged, with their workers, in the order of claim expiry.

        Returns at most 1,000. With ``states``, it returns at most 100, with their states (see
        :meth:`Job.set_state`), their tasks and their last failed attempts.
        """
        return self._sender.run(claim_calls.outstanding(self.name, limit, states))

    def status(
        self, jobs: MessageLocation | Iterable[MessageLocation], *, wait: Seconds = 0.0, states: bool = False
    ) -> list[JobInfo]:
        """Returns the status of jobs.

        Args:
            jobs: One job or several: ``id``, ``partition:id``, ``(partition, id)``, or a receipt or message.
            wait: Seconds, up to 20, to wait until one of the jobs has ended. Each request (100 jobs) waits.
            states: Also return the states that workers have set.
        """
        infos: list[JobInfo] = []
        for call in job_calls.jobs(self.name, message_calls.list_locations(jobs), wait, states=states):
            answer = self._sender.run(call)
            infos += answer
        return infos

    def peek(self, limit: int = 10) -> list[Message]:
        """Returns the oldest messages that are not acknowledged, claimed or not. Does not claim them."""
        return self._sender.run(claim_calls.peek(self.name, limit))

    def _calls_by_queue(
        self, call: Callable[..., Iterator[Call[None]]], claims: Claim | Iterable[Claim], *args: object
    ) -> Iterator[Call[None]]:
        return claim_calls.each_queue(call, claim_calls.receipts_of(self.queues, claims), *args)

    def _acknowledge(self, sender: Sender, loop: Claiming, patient: Patience) -> None:
        """Acknowledges the finished jobs of a loop. Retries like the loop while the service is unavailable.

        Refused jobs are lost. After an error that names some of them, the others are sent again at once.
        """
        claims = self._renewer.claims
        while finished := loop.begin_acknowledgement():
            claims.reserve_for_acknowledgement(finished)
            try:
                refused = send_all(sender.run, acknowledge_calls(finished))
            except ClientError as error:
                if not claims.end_refused(finished, error):
                    sender.timing.sleep(patient.pause_after(error))
                continue
            claims.end(finished, [r.receipt for r in refused])
            loop.clear_finished()
            patient.record_success()

    def _leave(self, batch: list[HeldClaim]) -> None:
        for calls in self._renewer.claims.leave(batch) if batch else ():
            with suppress(ClientError):
                send_all(self._sender.run, calls, LEAVE_TIMEOUT)


def _release_failed(job: Job, error: Exception, delay: float | None) -> None:
    log.warning("Handling %r failed, delivery %d: %r", job, job.deliveries, error, exc_info=error)
    try:
        job.release(delay, error)
    except ClientError as failure:
        if not (failure.temporary or job.lost):
            raise
        log.warning("%r could not be released, so its claim has to expire first: %s", job, failure)
