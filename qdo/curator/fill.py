"""Moves the messages of a Queuey queue to a Curator queue, each exactly once, even if the process is killed.

The steps of a batch::

    claim     up to 100 messages, for a minute
    put       one transaction creates an item for each and writes their receipts into a node beside the queue
    ack       the messages are acknowledged

Messages are claimed rather than read by time, because a job queue keeps acknowledged messages for readers by time, and
because claims exclude other workers. A new fill first acknowledges the receipts that an interrupted one has left.
The transaction checks the version of that node, so if two fills of one queue run, one of them fails.

A transaction is sent only while its claims outlast the ZooKeeper session. So a process that was paused for longer than
its claims has lost its session as well, and creates nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from qdo.curator.drain import ID_HEADER, MAX_SAMPLES, PRIORITY_HEADER, DrainTarget, Left, ProgressCallback
from qdo.curator.nodes import DELAY, IDS, PRIORITY, QUEUE, RECIPES, SIMPLE
from qdo.curator.place import QueuePlace, decode_node
from qdo.errors import CoordinationLost, CuratorError, InvalidArgument
from qdo.group.zookeeper.tree import (
    MAX_NODE_BYTES,
    OPERATION_OVERHEAD_BYTES,
    Check,
    Create,
    Delete,
    Rejection,
    RejectionReason,
    SetData,
    make_nodes,
    yield_attempts,
)
from queuey.client import AsyncClient, Claimed, Message

MAX_BATCH_MESSAGES = 100
CLAIM_TIMEOUT = 60.0
"""Timeout of a claim, in seconds. Messages of a killed fill return to the queue after it."""
MIN_CLAIM_MARGIN = 5.0
"""Min time between the end of the ZooKeeper session and the end of a claim, in seconds."""
ASIDE_TIMEOUT = 3600.0
"""Timeout of the claim of a message that does not fit into a node, in seconds; other messages are moved meanwhile."""
WAIT_TIMEOUT = 1.0
"""Timeout of one wait for claimed messages, in seconds."""


class FillPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a fill.

    Attributes:
        source: The queue to empty.
        recipe: The recipe of the Curator queue.
        priority: Default priority of messages, for the recipe ``priority``.
        limit: Max messages to move; all if None.
        node_limit: Max bytes of a transaction at the servers.
        dry_run: Only count.
    """

    source: DrainTarget
    recipe: str = "queue"
    priority: int = 0
    limit: int | None = None
    node_limit: int = MAX_NODE_BYTES
    dry_run: bool = False


class Filled(msgspec.Struct):
    """The result of a fill, as ``--json`` prints it.

    Attributes:
        messages: Number of messages that were moved, or with ``dry_run`` would be.
        twice: Number of moved messages that another worker got as well, because the fill was interrupted for longer
            than a claim.
        remaining: Number of unacknowledged messages in the queue afterwards: claimed by others, or not due yet.
        left: Number of messages that were not moved because of their content.
        samples: Some of the messages counted in ``left``, by id.
        dry_run: True if nothing was moved.
    """

    messages: int = 0
    twice: int = 0
    remaining: int = 0
    left: int = 0
    samples: list[Left] = []
    dry_run: bool = False


class FillProgress(msgspec.Struct, frozen=True, array_like=True):
    """The content of the node beside the queue: receipts of messages that have items."""

    source: DrainTarget
    receipts: tuple[str, ...] = ()


def encode_body(message: Message) -> bytes:
    body = message.body
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def make_prefix(recipe: str, message: Message, *, priority: int, now: float) -> str:
    """Returns the name of a message's node, without the sequence.

    Args:
        recipe: The recipe of the queue.
        message: A message. Its headers may contain a priority or an id, as a drain writes them.
        priority: The priority if the headers have none.
        now: Seconds since 1970, the time of delivery in a delay queue.

    Raises:
        InvalidArgument: The headers are not valid for the recipe.
    """
    names = RECIPES[recipe]
    if names is PRIORITY:
        text = message.headers.get(PRIORITY_HEADER, str(priority))
        try:
            return PRIORITY.prefix(int(text))
        except ValueError as error:
            raise InvalidArgument(f"its header {PRIORITY_HEADER} is {text!r}, not a number") from error
    if names is DELAY:
        return DELAY.prefix(int(now * 1000))
    if names is IDS:
        return IDS.prefix(message.headers.get(ID_HEADER, message.id))
    return (SIMPLE if names is SIMPLE else QUEUE).prefix()


class Fill:
    """One run of a fill; see the module.

    Args:
        place: The Curator queue.
        client: A client of Queuey.
        plan: The options.
        report_progress: Called with the progress.
        patience: Time to wait for claimed messages after the last moved one, in seconds.
        clock: Returns the seconds since 1970.
        ticks: A monotonic clock in seconds.
    """

    def __init__(
        self,
        place: QueuePlace,
        client: AsyncClient,
        plan: FillPlan,
        *,
        report_progress: ProgressCallback = lambda _done, _total: None,
        patience: float = CLAIM_TIMEOUT + MIN_CLAIM_MARGIN,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self.result = Filled(dry_run=plan.dry_run)
        self._place, self._plan, self._report_progress = place, plan, report_progress
        self._jobs = client.job_queue(plan.source.queue)
        self._patience, self._clock, self._ticks = patience, clock, ticks
        self._version = 0
        self._aside: dict[str, Claimed] = {}

    async def run(self) -> Filled:
        """Moves all messages; with ``dry_run`` only counts them.

        Raises:
            CuratorError: A fill from another queue has to be completed first, or another fill is running.
            CoordinationError: ZooKeeper failed. No message is lost or duplicated: run the fill again.
            ClientError: Queuey failed. No message is lost or duplicated: run the fill again.
        """
        size = (await self._jobs.size()).size
        if self._plan.dry_run:
            self.result.messages = size if self._plan.limit is None else min(size, self._plan.limit)
            return self.result
        await self._begin()
        try:
            await self._move_all(size)
        finally:
            if self._aside:
                await self._jobs.release(list(self._aside.values()))
        await self._place.link.apply(
            [(Check(self._place.receipts_path, self._version), Delete(self._place.receipts_path))]
        )
        self.result.remaining = (await self._jobs.size()).size
        return self.result

    async def _move_all(self, size: int) -> None:
        waited = 0.0
        while room := self._max_next_claim:
            began = self._ticks()
            claimed = await self._jobs.receive(room, ttl=CLAIM_TIMEOUT, wait=WAIT_TIMEOUT if waited else 0)
            if not claimed:
                # Messages of a killed fill return to the queue shortly after their claims end.
                counts = await self._jobs.counts()
                if waited > self._patience or counts.claimed + counts.waiting <= len(self._aside):
                    return
                waited += WAIT_TIMEOUT
                continue
            waited = 0.0
            await self._move(claimed, began)
            self._report_progress(self.result.messages, max(size, self.result.messages))

    @property
    def _max_next_claim(self) -> int:
        return (
            MAX_BATCH_MESSAGES
            if self._plan.limit is None
            else min(MAX_BATCH_MESSAGES, self._plan.limit - self.result.messages)
        )

    async def _begin(self) -> None:
        place = self._place
        beginning = msgspec.msgpack.encode(FillProgress(self._plan.source))
        await make_nodes(place.link, [place.path])
        await place.link.apply([(Create(place.receipts_path, beginning),)])
        (node,) = await place.link.read([place.receipts_path])
        if node is None:
            raise CoordinationLost("another fill of the same queue has just ended; run it again")
        progress, self._version = decode_node(place.receipts_path, node.data, FillProgress), node.version
        source = progress.source
        if source != self._plan.source:
            raise CuratorError(
                f"A fill of {place.shown!r} from the queue {source.queue!r} of the application {source.app!r} (store "
                f"{source.service}) was interrupted. Run it again with that queue first."
            )
        await self._acknowledge(progress.receipts)

    async def _move(self, claimed: list[Claimed], began: float) -> None:
        """Moves messages whose claim was requested at ``began``, a time of the monotonic clock.

        Messages beyond one transaction are released. A message that does not fit into a node is put aside.
        """
        creates: list[Create] = []
        moved: list[Claimed] = []
        room = self._plan.node_limit
        later: list[Claimed] = []
        for claim in claimed:
            create = self._make_item(claim)
            if create is None:
                await self._put_aside(claim)
                continue
            weight = OPERATION_OVERHEAD_BYTES + len(create.path) + len(create.data) + len(claim.receipt) + 16
            if weight > room:
                later.append(claim)
                continue
            room -= weight
            creates.append(create)
            moved.append(claim)
        if later:
            await self._jobs.release(later)
        if moved:
            await self._create_items(creates, moved, began)

    def _make_item(self, claimed: Claimed) -> Create | None:
        message = claimed.message
        try:
            prefix = make_prefix(self._plan.recipe, message, priority=self._plan.priority, now=self._clock())
        except InvalidArgument as error:
            self._count_as_left(message.id, str(error))
            return None
        body = encode_body(message)
        data = RECIPES[self._plan.recipe].data(body)
        # The transaction writes the receipt as well.
        if len(data) + 2 * OPERATION_OVERHEAD_BYTES + 1024 + len(self._place.path) > self._plan.node_limit:
            self._count_as_left(message.id, f"has {len(body)} bytes, too many for a node; see --node-limit")
            return None
        return Create(self._place.child_path(prefix), data, sequence=True)

    async def _create_items(self, creates: list[Create], moved: list[Claimed], began: float) -> None:
        """Creates items and records their receipts in one transaction, then acknowledges the messages.

        Releases the messages instead if their claims might end before that. Raises CuratorError if another fill runs.
        """
        place, receipts = self._place, tuple(claim.receipt for claim in moved)
        progress = SetData(
            place.receipts_path, msgspec.msgpack.encode(FillProgress(self._plan.source, receipts)), self._version
        )
        for _ in yield_attempts("the queue"):
            if self._ticks() - began > CLAIM_TIMEOUT - MIN_CLAIM_MARGIN - place.link.timeout:
                await self._jobs.release(moved)
                return
            (outcome,) = await place.link.apply([(progress, *creates)])
            if not isinstance(outcome, Rejection):
                self._version += 1
                break
            if outcome.at == 0:
                await self._jobs.release(moved)
                raise CuratorError(f"Another fill of {place.shown!r} is under way. Wait for its end, and run it again.")
            if outcome.why is not RejectionReason.NO_NODE:
                raise CuratorError(f"ZooKeeper did not create an item in {place.shown!r}: {outcome.why.value}")
            await make_nodes(place.link, [place.path])
        await self._acknowledge(receipts)
        self.result.messages += len(moved)

    async def _acknowledge(self, receipts: tuple[str, ...]) -> None:
        if receipts:
            self.result.twice += len(await self._jobs.ack(receipts))

    async def _put_aside(self, claimed: Claimed) -> None:
        """Keeps the claim of a message that does not fit until the fill ends, or for an hour."""
        self._aside[claimed.message.id] = claimed
        await self._jobs.renew([claimed], ASIDE_TIMEOUT)

    def _count_as_left(self, name: str, reason: str) -> None:
        if name not in self._aside:
            self.result.left += 1
            if len(self.result.samples) < MAX_SAMPLES:
                self.result.samples.append(Left(name, reason))
