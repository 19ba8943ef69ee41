"""Moves the messages of a Curator queue to a Queuey queue, each exactly once, even if the process is killed.

The steps of a batch::

    read      nodes in the queue's order
    stage     one transaction removes them and creates one node beside the queue that holds them all
    post      one request to Queuey, with the name of that node as Idempotency-Key
    delete    the node is removed

After the transaction no consumer can take the messages, so consumers may run during a drain. A new drain first
completes batches of an interrupted one. The name of the staged node is a new UUID. So a queue that was removed and
created again, which restarts its sequence, never repeats a key.

With a lock path the transaction also creates and removes the lock of each item. It fails while a consumer holds one,
and no lock outlives it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from qdo.curator.nodes import RECIPES, Child, RecipeNodes
from qdo.curator.place import MAX_NODES_PER_READ, QueuePlace, decode_node
from qdo.errors import BadItem, CuratorError
from qdo.group.zookeeper.tree import (
    MAX_NODE_BYTES,
    Change,
    Check,
    Create,
    Delete,
    Operation,
    Rejection,
    RejectionReason,
    estimate_bytes,
    make_nodes,
    yield_attempts,
)
from queuey.client import AsyncClient, Outgoing, Receipt, order_of
from queuey.client.errors import InvalidRequest, KeyReused

MAX_BATCH_NODES = 100
MAX_BATCH_MESSAGES = 1000
MAX_BATCH_BYTES = 256 * 1024
"""Max bytes of the items of a batch; a larger item is a batch of its own. ZooKeeper allows about 1 MB a request."""
MAX_DELAY = 33_554_432
LOCK_TIMEOUT = 30.0
"""Timeout for locks of consumers, in seconds since the last item that was moved or skipped."""
RETRY_INTERVAL = 0.5
MAX_SAMPLES = 20
PRIORITY_HEADER, ID_HEADER = "curator-priority", "curator-id"

Recipe: TypeAlias = Literal["queue", "priority", "delay", "id", "simple"]
ProgressCallback = Callable[[int, int | None], object]
"""Called with the number of items moved, and their total."""


class DrainTarget(msgspec.Struct, frozen=True):
    """A Queuey queue; ``service`` is the id of the store."""

    service: str
    app: str
    queue: str


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a drain.

    Attributes:
        target: The queue to fill.
        recipe: The recipe of the Curator queue.
        lock_path: The parent of the queue's locks, with the chroot; None if the queue has no lock path.
        limit: Max items to move; all if None.
        ttl: Seconds that the messages live in Queuey; the queue's TTL if None.
        partition: The partition for all messages; if None, Queuey chooses one for each message.
        node_limit: Max bytes of a transaction at the servers.
        dry_run: Only count.
    """

    target: DrainTarget
    recipe: Recipe = "queue"
    lock_path: str | None = None
    limit: int | None = None
    ttl: int | None = None
    partition: int | None = None
    node_limit: int = MAX_NODE_BYTES
    dry_run: bool = False


class Left(msgspec.Struct, frozen=True):
    """A node that was not moved, and the reason."""

    name: str
    reason: str


class Drained(msgspec.Struct):
    """The result of a drain, as ``--json`` prints it.

    Attributes:
        items: Number of nodes that were moved, or with ``dry_run`` would be.
        messages: Number of messages in these nodes.
        held: Number of nodes that were not moved because consumers hold their locks.
        left: Number of nodes that were not moved because of their content.
        samples: Some of the nodes counted in ``left``.
        dry_run: True if nothing was moved.
    """

    items: int = 0
    messages: int = 0
    held: int = 0
    left: int = 0
    samples: list[Left] = []
    dry_run: bool = False


class StagedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item that was removed from the queue, with everything needed to post it or to put it back."""

    name: str
    data: bytes
    delay: float


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """The content of a staged node. Each post of it sends the same request."""

    target: DrainTarget
    recipe: Recipe
    ttl: int | None
    partition: int | None
    items: tuple[StagedItem, ...]


class DrainedItem(NamedTuple):
    """An item that was read and can be moved."""

    child: Child
    data: bytes
    version: int
    messages: int
    delay: float


class Unfit(Exception):
    """The reason why an item cannot be moved."""


def check_item(
    names: RecipeNodes, child: Child, data: bytes, version: int, *, now: float, max_bytes: int
) -> DrainedItem:
    """Returns an item if it can be moved.

    Raises Unfit with the reason otherwise; ``max_bytes`` is the max bytes of its data.
    """
    try:
        messages = names.messages(data)
    except BadItem as error:
        raise Unfit(str(error)) from error
    if not all(messages):
        raise Unfit("holds an empty message, which Queuey does not accept")
    if len(messages) > MAX_BATCH_MESSAGES:
        raise Unfit(f"holds {len(messages)} messages, and a request to Queuey takes {MAX_BATCH_MESSAGES}")
    if len(data) > max_bytes:
        raise Unfit(f"has {len(data)} bytes, and only {max_bytes} fit into a transaction; see --node-limit")
    delay = max(0.0, round(child.epoch / 1000 - now, 3))
    if delay > MAX_DELAY:
        raise Unfit(f"is due in {delay:.0f} seconds, and Queuey delays by {MAX_DELAY} at most")
    return DrainedItem(child, data, version, len(messages), delay)


def make_messages(staged: Staged) -> Iterator[Outgoing]:
    names = RECIPES[staged.recipe]
    for item in staged.items:
        headers = make_headers(names.parse(item.name))
        for body in names.messages(item.data):
            yield Outgoing(
                body, ttl=staged.ttl, partition=staged.partition, delay=item.delay or None, headers=headers or None
            )


def make_headers(child: Child | None) -> Mapping[str, str]:
    if child is None:
        return {}
    if child.priority is not None:
        return {PRIORITY_HEADER: str(child.priority)}
    return {ID_HEADER: child.id} if child.id is not None else {}


def split_into_batches(items: Iterable[DrainedItem]) -> Iterator[list[DrainedItem]]:
    """Splits by limits of nodes, messages and bytes; a larger item is a batch of its own."""
    batch: list[DrainedItem] = []
    messages = weight = 0
    for item in items:
        full = len(batch) >= MAX_BATCH_NODES or messages + item.messages > MAX_BATCH_MESSAGES
        if batch and (full or weight + len(item.data) > MAX_BATCH_BYTES):
            yield batch
            batch, messages, weight = [], 0, 0
        batch.append(item)
        messages += item.messages
        weight += len(item.data)
    if batch:
        yield batch


class Drain:
    """One run of a drain; see the module.

    Args:
        place: The Curator queue.
        client: A client of Queuey.
        plan: The options.
        report_progress: Called with the progress.
        patience: Time to wait for locks of consumers, in seconds.
        clock: Returns the seconds since 1970.
    """

    def __init__(
        self,
        place: QueuePlace,
        client: AsyncClient,
        plan: DrainPlan,
        *,
        report_progress: ProgressCallback = lambda _done, _total: None,
        patience: float = LOCK_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.result = Drained(dry_run=plan.dry_run)
        self._place, self._client, self._plan, self._report_progress = place, client, plan, report_progress
        self._patience, self._clock = patience, clock
        self._names = RECIPES[plan.recipe]
        self._skipped: set[str] = set()
        self._gone: set[str] = set()
        self._latest: Receipt | None = None

    async def run(self) -> Drained:
        """Moves all messages up to the limit, waiting for locked items; with ``dry_run`` only counts them.

        Raises:
            CuratorError: The queue does not exist, or a drain to another queue has to be completed first.
            CoordinationError: ZooKeeper failed. No message is lost or duplicated: run the drain again.
            ClientError: Queuey failed. No message is lost or duplicated: run the drain again.
        """
        await self._client.info(self._plan.target.queue)
        await self._place.read_names()
        if not self._plan.dry_run:
            await self._complete_interrupted()
        waited = 0.0
        while self._max_next_batch:
            held, moved = await self._move_available()
            waited = 0.0 if moved else waited + RETRY_INTERVAL
            if self._plan.dry_run or not (moved or held):
                self.result.held = held
                break
            if not moved:
                if waited > self._patience:
                    self.result.held = held
                    break
                await asyncio.sleep(RETRY_INTERVAL)
        if not self._plan.dry_run:
            await self._place.link.apply([(Delete(self._place.staging_path),)])
        return self.result

    @property
    def _max_next_batch(self) -> int:
        return MAX_BATCH_NODES if self._plan.limit is None else max(0, self._plan.limit - self.result.items)

    async def _move_available(self) -> tuple[int, bool]:
        """Moves the items that are not locked, and skips items that cannot be moved.

        Returns:
            The number of locked items, and whether any item was moved or skipped.
        """
        names = await self._place.read_names()
        children = [child for child in self._names.in_order(names) if child.name not in self._skipped]
        for name in sorted(set(names) - {child.name for child in children} - self._skipped):
            self._skip(name, f"is not the name of a node of a {self._names.recipe}; use --recipe for another recipe")
        locked = await self._read_locked_names()
        free = [child for child in children if child.name not in locked]
        before = self.result.items + len(self._skipped) + len(self._gone)
        total = self.result.items + len(free)
        self._report_progress(self.result.items, total)
        for start in range(0, len(free), MAX_NODES_PER_READ):
            if not self._max_next_batch:
                break
            for batch in split_into_batches(await self._read_movable(free[start : start + MAX_NODES_PER_READ])):
                if self._max_next_batch:
                    await self._move(batch[: self._max_next_batch])
                self._report_progress(self.result.items, total)
        went_on = self.result.items + len(self._skipped) + len(self._gone) > before
        return len(children) - len(free), went_on

    async def _read_locked_names(self) -> set[str]:
        if self._plan.lock_path is None:
            return set()
        (names,) = await self._place.link.children([self._plan.lock_path])
        return set(names or ())

    async def _read_movable(self, children: list[Child]) -> list[DrainedItem]:
        items = []
        now, most = self._clock(), self._plan.node_limit - self._max_overhead_bytes(children[0].name)
        for child, node in zip(children, await self._place.read([child.name for child in children]), strict=True):
            if node is None:
                self._gone.add(child.name)
                continue
            try:
                items.append(check_item(self._names, child, node.data, node.version, now=now, max_bytes=most))
            except Unfit as why:
                self._skip(child.name, str(why))
        return items

    def _max_overhead_bytes(self, name: str) -> int:
        change: Change = (
            *self._make_removal(name, 0),
            Create(f"{self._place.staging_path}/{uuid.uuid4()}", self._encode_batch([])),
        )
        return estimate_bytes(change) + 2 * len(name.encode()) + 64

    def _make_removal(self, name: str, version: int) -> tuple[Operation, ...]:
        path = self._place.child_path(name)
        taking: tuple[Operation, ...] = (Check(path, version), Delete(path))
        if self._plan.lock_path is None:
            return taking
        lock = f"{self._plan.lock_path}/{name}"
        return (Create(lock), *taking, Delete(lock))

    def _encode_batch(self, batch: list[DrainedItem]) -> bytes:
        plan = self._plan
        taken = tuple(StagedItem(item.child.name, item.data, item.delay) for item in batch)
        return msgspec.msgpack.encode(Staged(plan.target, plan.recipe, plan.ttl, plan.partition, taken))

    async def _move(self, batch: list[DrainedItem]) -> None:
        """Stages and posts a batch, without items that consumers have locked or removed meanwhile.

        With ``dry_run`` only counts it.
        """
        if self._plan.dry_run:
            self._count_moved(batch)
            return
        path = f"{self._place.staging_path}/{uuid.uuid4()}"
        tries = yield_attempts("the queue", len(batch) + 25)
        while batch:
            next(tries)
            taking = [self._make_removal(item.child.name, item.version) for item in batch]
            staging = Create(path, self._encode_batch(batch))
            change: Change = (*(operation for operations in taking for operation in operations), staging)
            (outcome,) = await self._place.link.apply([change])
            if not isinstance(outcome, Rejection):
                break
            await self._drop_rejected(batch, *divmod(outcome.at, len(taking[0])), outcome.why)
        if batch:
            staged = msgspec.msgpack.decode(self._encode_batch(batch), type=Staged)
            await self._post(path, staged, batch)

    async def _drop_rejected(self, batch: list[DrainedItem], index: int, operation: int, why: RejectionReason) -> None:
        locking = self._plan.lock_path is not None
        if index == len(batch) or (locking and operation == 0 and why is RejectionReason.NO_NODE):
            # Curator creates parents as containers, which servers remove when they are empty.
            await make_nodes(self._place.link, filter(None, (self._place.staging_path, self._plan.lock_path)))
            return
        item = batch.pop(index)
        if why is RejectionReason.NO_NODE:
            self._gone.add(item.child.name)

    async def _post(self, path: str, staged: Staged, batch: list[DrainedItem]) -> None:
        """Sends a staged batch to Queuey and deletes its node.

        If Queuey refuses the batch, puts the items back, moves each alone, and skips those refused alone.
        """
        try:
            receipts = await self._client.send_many(
                staged.target.queue, make_messages(staged), idempotency_key=path.rpartition("/")[2], after=self._latest
            )
        except InvalidRequest as error:
            if isinstance(error, KeyReused) or error.in_doubt:
                raise
            await self._put_back(path, staged)
            if len(staged.items) == 1:
                self._skip(staged.items[0].name, f"was refused by Queuey: {error}")
            for item in batch if len(staged.items) > 1 else ():
                await self._move([item._replace(version=0)])
            return
        prompt = [
            receipt for receipt, message in zip(receipts, make_messages(staged), strict=True) if not message.delay
        ]
        self._latest = max(prompt, key=lambda receipt: order_of(receipt.id), default=self._latest)
        await self._place.link.apply([(Delete(path),)])
        self.result.items += len(staged.items)
        self.result.messages += len(receipts)

    async def _put_back(self, path: str, staged: Staged) -> None:
        """Puts the items of a staged node back into the queue and deletes it, unless it is gone already.

        Raises CuratorError if an item exists again.
        """
        back = [Create(self._place.child_path(item.name), item.data) for item in staged.items]
        for _ in yield_attempts("the queue"):
            (outcome,) = await self._place.link.apply([(Delete(path), *back)])
            if not isinstance(outcome, Rejection) or outcome.at == 0:
                return  # without the node, another drain has put the items back
            if outcome.why is not RejectionReason.NO_NODE:
                raise CuratorError(
                    f"Queuey refuses the messages in {path!r}, and they cannot be put back, because "
                    f"{back[outcome.at - 1].path!r} exists again. Raise max_body of the service and run it again."
                )
            await make_nodes(self._place.link, [self._place.path])

    async def _complete_interrupted(self) -> None:
        """Posts the nodes that an interrupted drain has staged; raises CuratorError if they were for another queue."""
        link, drained = self._place.link, self._place.staging_path
        (names,) = await link.children([drained])
        for name in sorted(names or ()):
            path = f"{drained}/{name}"
            (node,) = await link.read([path])
            if node is None:
                continue
            staged = decode_node(path, node.data, Staged)
            target = staged.target
            if target != self._plan.target:
                raise CuratorError(
                    f"A drain of {self._place.shown!r} to the queue {target.queue!r} of the application {target.app!r} "
                    f"(store {target.service}) was interrupted. Run it again with that queue first."
                )
            await self._post(path, staged, [])
        if self._plan.lock_path is not None:
            await make_nodes(link, [self._plan.lock_path])
        await make_nodes(link, [drained])

    def _count_moved(self, batch: list[DrainedItem]) -> None:
        self.result.items += len(batch)
        self.result.messages += sum(item.messages for item in batch)

    def _skip(self, name: str, reason: str) -> None:
        self._skipped.add(name)
        self.result.left += 1
        if len(self.result.samples) < MAX_SAMPLES:
            self.result.samples.append(Left(name, reason))
