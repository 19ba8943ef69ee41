"""Claimed messages as jobs, and the sending of calls about claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from queuey.client.calls import claim_calls, job_calls
from queuey.client.calls.call import Call, Seconds, seconds
from queuey.client.calls.claim_calls import ReleaseReason
from queuey.client.claims.held import HeldClaim, HeldClaims, Work, acknowledge_calls
from queuey.client.claims.renewers import AsyncSendCall
from queuey.client.errors import ClaimLost, ClientError
from queuey.client.results import Claimed, Message, Refused

if TYPE_CHECKING:
    from queuey.client._async.sender import AsyncSender


MAX_REDELIVERY_DELAY = 60.0
"""Max seconds until the current job is delivered again after its loop was left."""


class AsyncJob:
    """A claimed message. The claim is renewed in the background until the loop asks for the next job.

    Example:
        >>> import asyncio
        >>> from queuey.client import AsyncClient
        >>> async def main():
        ...     async with AsyncClient() as client:
        ...         async for job in client.job_queue("orders").claim(idle=0):
        ...             if job.deliveries > 3:
        ...                 await job.ack()  # give up
        ...             elif job.body == "two eggs":
        ...                 await job.release(delay=60)
        ...         counts = await client.job_queue("orders").counts()
        ...         print(counts.retrying)
        >>> asyncio.run(main())
        1
    """

    def __init__(self, claimed: Claimed, held_claim: HeldClaim, claims: HeldClaims, sender: AsyncSender) -> None:
        self.claimed = claimed
        """The claim as the service returned it."""
        self.held_claim = held_claim
        self._claims = claims
        self._sender = sender
        self._state = claimed.state
        held_claim.delay_if_left = min(2.0 ** min(claimed.deliveries - 1, 9), MAX_REDELIVERY_DELAY)

    def __repr__(self) -> str:
        message = self.message
        return f"<{type(self).__name__} {self.queue} {message.partition}:{message.id} {self.held_claim.state}>"

    @property
    def message(self) -> Message:
        """The message."""
        return self.claimed.message

    @property
    def queue(self) -> str:
        """The name of the message's queue."""
        return self.held_claim.queue

    @property
    def body(self) -> Any:  # noqa: ANN401 - any JSON value
        """The message's body: ``str``, ``bytes``, or the value of one that was sent as JSON."""
        return self.claimed.message.body

    @property
    def receipt(self) -> str:
        """The receipt of this claim."""
        return self.claimed.receipt

    @property
    def deliveries(self) -> int:
        """Number of this attempt: deliveries that were given back before work on the message began do not count."""
        return self.claimed.deliveries

    @property
    def state(self) -> Any:  # noqa: ANN401 - any JSON value
        """The last state set for the message, by :meth:`set_state` or by an earlier worker. None if no state was set.

        A new attempt can continue where the last one stopped.
        """
        return self._state

    @property
    def held(self) -> bool:
        """True until the message is acknowledged or released, or the service has refused the claim.

        An expired claim still counts as held: see :attr:`lost`.
        """
        return self.held_claim.state == "held"

    @property
    def lost(self) -> bool:
        """True if another caller may have the message, because the claim could not be renewed in time.

        A long handler can check this between two steps and stop. Once true, it stays true, and the loop releases the
        message instead of acknowledging it. :meth:`ack` still acknowledges it.
        """
        return self._claims.is_lost(self.held_claim)

    @property
    def cancelled(self) -> bool:
        """True if the job was cancelled (:meth:`queuey.client.AsyncJobQueue.cancel`). Updated by each renewal.

        A long handler can check this between two steps and stop. It may also finish, and then the job is done. A
        cancelled job is not delivered again, whatever the handler does.
        """
        return self.held_claim.cancelled

    def set_result(self, result: object) -> None:
        """Sets the result of the job, to be sent with the acknowledgement. None sets no result.

        The queue keeps results for its ``result_ttl`` seconds; without one, a result is ignored unchecked. If a result
        has more than 16,384 bytes, only its size is kept.

        Args:
            result: Any JSON value.

        Raises:
            InvalidArgument: The result has no JSON form, or is nested more than 100 levels deep.
        """
        if self.claimed.result_ttl:
            self.held_claim.result = job_calls.encode_result(result)

    async def ack(self, result: object = None) -> None:
        """Acknowledges the message: it is not delivered again. A claim loop does this when it continues.

        If the acknowledgement fails because the service is unavailable, the loop tries it again.

        Args:
            result: As for :meth:`set_result`.

        Raises:
            ClaimLost: The message was delivered to another caller.
        """
        if result is not None:
            self.set_result(result)
        try:
            await self._send(acknowledge_calls([self.held_claim]))
        except ClientError as error:
            if error.temporary:
                self._claims.finish(self.held_claim)
            raise
        self._claims.end([self.held_claim])

    async def release(
        self,
        delay: Seconds | None = None,
        reason: ReleaseReason | None = None,
        *,
        retry: bool = True,
        begun: bool = True,
    ) -> None:
        """Releases the message: it is delivered again, now or after a delay.

        If this fails because the service is unavailable, the message is delivered again when its claim expires. After
        any other error that does not name this claim as lost, the claim is held and renewed again.

        Args:
            delay: Seconds, at most 43,200, however long the claim would have lasted. By default the message is
                delivered at once, or, if there is a reason, after the queue's ``backoff``.
            reason: An error or a text. ``queuey explain`` shows it, and a dead letter has the last ten.
            retry: False makes the message a dead letter now. In a queue of dead letters it is delivered again.
            begun: False if work on the message has not begun, or was stopped: then the attempt does not count, at most
                10 times for a message.

        Raises:
            ClaimLost: The message was already delivered to another caller.
        """
        delay = seconds(delay)
        self.held_claim.begun = begun
        calls = list(claim_calls.release(self.queue, [self.receipt], delay, reason, retry, begun))
        by_backoff = delay is None and reason is not None
        self._claims.end_by_release([self.held_claim], self.held_claim.delay_if_left if by_backoff else delay or 0.0)
        try:
            await self._send(calls)
        except ClientError as error:
            if not error.temporary:
                self._claims.hold_again(self.held_claim)
            raise

    async def renew(self, ttl: Seconds | None = None) -> None:
        """Renews the claim now. The loop also renews it automatically.

        Args:
            ttl: Seconds from now on. By default those of the loop.

        Raises:
            ClaimLost: The message was delivered to another caller.
        """
        sent_at, length = self._sender.timing.clock(), self.held_claim.ttl if ttl is None else seconds(ttl)
        await self._send(claim_calls.renew(self.queue, [self.receipt], length, self._claims.mark_cancelled))
        self._claims.record_renewal(self.held_claim, sent_at, length)

    async def set_state(self, state: object) -> None:
        """Sets the progress of the work. ``queuey jobs`` and ``queuey explain`` show it until the message is done.

        Args:
            state: Any JSON value of up to 4,096 bytes. It replaces the previous state.

        Raises:
            ClaimLost: The message was already delivered to another caller.
            InvalidRequest: The state is too long. The claim is not changed.
            InvalidArgument: The state is not a JSON value.

        Example:
            >>> import asyncio
            >>> from queuey.client import AsyncClient
            >>> async def main():
            ...     async with AsyncClient() as client:
            ...         async for job in client.job_queue("orders").claim(idle=0):
            ...             await job.set_state({"done": 3, "of": 10})
            ...             print([one.state for one in await client.job_queue("orders").outstanding(states=True)])
            >>> asyncio.run(main())
            [{'done': 3, 'of': 10}]
            [{'done': 3, 'of': 10}]
        """
        await self._send(claim_calls.set_states(self.queue, {self.receipt: state}))
        self._state = state

    async def _send(self, calls: Iterable[Call[None]]) -> None:
        """Sends calls one after another. If an error names the claim, the claim is lost; the error is raised anyway."""
        try:
            for call in calls:
                await self._sender.run(call)
        except ClientError as error:
            self._claims.end_refused([self.held_claim], error)
            raise


async def send_all(send: AsyncSendCall, calls: Iterable[Call[None]], within: float | None = None) -> list[Refused]:
    """Sends calls about receipts. Returns the refused receipts.

    Raises any error that names no refused receipts, without sending the further calls.
    """
    refused: list[Refused] = []
    for call in calls:
        try:
            await send(call, within)
        except ClaimLost as error:
            if not error.refused:
                raise
            refused.extend(error.refused)
    return refused


async def send_work(
    send: AsyncSendCall, claims: HeldClaims, work: Work, clock: Callable[[], float], report: Callable[[Exception], None]
) -> None:
    """Renews or acknowledges claims. Repeats the release of claims that were released while a renewal was running.

    Records success or failure in ``claims`` and raises no error. Calls ``report`` with each error that is not a
    :class:`~queuey.client.ClientError`.
    """
    began = clock()
    try:
        refused = await send_all(send, work.calls, work.timeout)
    except Exception as error:  # noqa: BLE001 - after any error, the other claims must still be renewed
        claims.record_failure(work, error)
        if not isinstance(error, ClientError):
            report(error)
    else:
        claims.record_success(work, began, [r.receipt for r in refused])
    for call in claims.repeated_releases(work):
        try:
            await send(call, work.repeat_timeout)
        except ClientError:
            continue  # The message is delivered again when its claim expires.
        except Exception as error:  # noqa: BLE001 - as above
            report(error)
