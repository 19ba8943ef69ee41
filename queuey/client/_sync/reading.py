# Do not edit: python deploy/unasync.py writes this file from queuey/client/_async/reading.py.
"""Reads of a client: by page, by long polls, and by streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

from msgspec import structs

from queuey.client.calls import message_calls
from queuey.client.calls.call import Point, Seconds
from queuey.client.calls.live_reads import EarlyMessages, Streaming, check_wait, live_query, read_newest
from queuey.client.calls.message_calls import Query, ReadOptions, query_after
from queuey.client.errors import ClientError, NotAuthenticated
from queuey.client.http.attempts import Notice, Patience
from queuey.client.results import Message, Page, QueueRead, StreamedMessage

if TYPE_CHECKING:
    from queuey.client._sync.sender import Sender

MIN_POLL_INTERVAL = 0.5
"""Min seconds between two reads, in case the server does not hold requests open."""


class Reading:
    """The reading methods of :class:`~queuey.client.Client`."""

    _sender: Sender

    def read(self, queue: str, *, wait: Seconds = 0.0, **options: Unpack[ReadOptions]) -> Page:
        """Reads one page of messages by time, by default from all partitions.

        Args:
            queue: The queue.
            wait: Seconds, up to 20, to wait for messages if none is available.
            options: See :class:`Query`.
        """
        return self._sender.run(message_calls.read(Query(queue=queue, **options), wait))

    def read_pages(self, queue: str, **options: Unpack[ReadOptions]) -> Iterator[Page]:
        """Reads page after page until no messages are left; ``limit`` is the size of a page."""
        query: Query | None = Query(queue=queue, **options)
        while query is not None:
            page = self._sender.run(message_calls.read(query))
            yield page
            query = message_calls.next_query(query, page)

    def read_all(self, queue: str, **options: Unpack[ReadOptions]) -> Iterator[Message]:
        """Reads all messages that are stored now, page by page; ``limit`` is the size of a page."""
        for page in self.read_pages(queue, **options):
            for message in page.messages:
                yield message

    def read_queues(self, queries: Iterable[str | Query], *, wait: Seconds = 0.0) -> tuple[QueueRead, ...]:
        """Reads one page of each of up to 100 queues in one call. The results are in the order of ``queries``.

        Args:
            queries: Names, or :class:`Query` for more than a name.
            wait: Seconds, up to 20, to wait for messages if none of the queues has any.
        """
        return self._sender.run(message_calls.read_queues(queries, wait))

    def tail_pages(
        self,
        queue: str,
        *,
        wait: Seconds = 20.0,
        patience: Seconds | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Page]:
        """Follows a queue and never ends. Yields an empty page after each ``wait`` seconds without messages.

        Continues through failures and restarts of servers. To resume later, pass the cursor of the last page as
        ``since``.

        Args:
            queue: The queue.
            wait: Seconds, up to 20, that the server holds a request open.
            patience: Max seconds of uninterrupted failure. Unlimited by default.
            notice: Called with the error when the service begins to fail, and with None when it answers again.
            options: See :class:`~queuey.client.Query`. By default only messages that become readable from now on;
                ``since=0`` begins with the oldest message. Partitions are merged by time unless ``merge`` is False.

        Raises:
            InvalidArgument: ``wait`` is not above 0 and at most 20, or the options have an end or a descending order.
            ClientError: A permanent error such as :class:`~queuey.client.QueueNotFound`, or ``patience`` has run out.
        """
        query, seconds_held = live_query(queue, options), check_wait(wait)
        sender, timing = self._sender.once, self._sender.timing
        patient = Patience(sender.policy, patience, timing, notice)
        early = EarlyMessages()
        while True:
            sent_at = timing.clock()
            has_start = query.since is not None or query.after is not None
            try:
                # Without a start, the first read only finds the horizon: everything from there on is new.
                page = sender.run(message_calls.read(query, seconds_held) if has_start else read_newest(query))
            except ClientError as error:
                timing.sleep(patient.pause_after(error))
                continue
            patient.record_success()
            if not has_start:
                query = structs.replace(query, since=page.horizon)
                continue
            query = query_after(query, page)
            if query.early:
                messages = early.take_new(page)
                query = structs.replace(query, early=early.make_cursor())
                yield structs.replace(page, messages=messages)
            else:
                yield page
            pause = min(MIN_POLL_INTERVAL, seconds_held) - (timing.clock() - sent_at)
            if pause > 0 and not (page.messages or page.more):
                timing.sleep(pause)

    def tail(
        self,
        queue: str,
        *,
        wait: Seconds = 20.0,
        patience: Seconds | None = None,
        notice: Notice | None = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Message]:
        """Follows a queue, message by message; see :meth:`tail_pages`."""
        for page in self.tail_pages(queue, wait=wait, patience=patience, notice=notice, **options):
            for message in page.messages:
                yield message

    def stream(
        self,
        queues: str | Iterable[str] | None = None,
        *,
        since: Point | None = None,
        partitions: str | int | Iterable[int] = "*",
        limit: int | None = None,
        cursor: str | None = None,
        early: bool = False,
        patience: Seconds | None = None,
        notice: Notice | None = None,
    ) -> Iterator[StreamedMessage]:
        """Follows one or more queues, or all that the credential may read, and never ends.

        One connection serves up to 1,000 queues. The stream continues through failures, restarts of the service and
        token renewals: every message is yielded, and none twice. It connects again after the time that the service asks
        for, or up to half as much longer, so that many streams do not return at once; while attempts fail, after
        growing pauses.

        Args:
            queues: Names of queues. By default all that the credential may read.
            since: Where to start: by default with the oldest messages, ``now`` with new ones.
            partitions: ``"*"`` for all, a number, or several.
            limit: Max messages of a partition that the server reads at once.
            cursor: The cursor of the last message of an earlier stream of the same queues.
            early: Also yield messages before their read delay is over. These are marked ``early``, can still disappear,
                and are not ordered with the others. Each message is yielded once.
            patience: Max seconds of uninterrupted failure. Unlimited by default.
            notice: Called with the error when the service begins to fail, and with None when it answers again.

        Raises:
            InvalidArgument: ``queues`` is empty, or a name, a position or the cursor is not valid.
            ClientError: A permanent error such as :class:`~queuey.client.QueueNotFound`, or ``patience`` has run out.

        Example:
            >>> from queuey.client import Client
            >>> with Client() as client:
            ...     for streamed in client.stream(["orders"], since=0):
            ...         print(streamed.queue, streamed.message.body)
            ...         break
            orders one apple
        """
        sender, timing = self._sender, self._sender.timing
        patient = Patience(sender.policy, patience, timing, notice)
        state = Streaming(queues, since, partitions, limit, cursor, early=early, begun=patient.record_success)
        while True:
            attempts, renewed = sender.make_attempts(state.begin_call()), False
            try:
                header = sender.authorization.header()
                try:
                    with sender.open(attempts, header) as chunks:
                        for chunk in chunks:
                            for streamed in state.read(chunk):
                                yield streamed
                            if state.must_renew(timing.clock()):
                                renewed = sender.authorization.renew(header)
                            if renewed:
                                break
                except NotAuthenticated:
                    if state.was_refused or not sender.authorization.renew(header):
                        raise
                    state.was_refused = renewed = True
                pause = state.pause_after(timing.clock(), timing.draw(), renewed=renewed)
            except ClientError as error:
                attempts.record_failure(error)
                pause = patient.pause_after(error, state.spread_retry(timing.draw()))
            timing.sleep(pause)
