"""One leader among Python and Java programs: the elections of Curator's LeaderSelector and LeaderLatch.

States of a contender::

    new ──start──► waiting ──(its node is the first)──► leading ◄──(RECONNECTED, the node is still its own)──┐
                      ▲                                    │                                                 │
                      │                                    ├──(SUSPENDED: the connection broke)──────► suspended
                      │                                    │                                                 │
                      └──────(LOST: the session has ended; or the node was removed)──────────────────────────┘
    any ──close──► closed (final)

A contender leads only in the state ``leading``. While it is suspended, another one may already lead, so it must not
change anything. After LOST it enters the election again by itself, with a new node behind all others.

A program that was paused (SIGSTOP, for example) learns late that its session has ended. Protect writes that only the
leader may do: put them into a transaction that checks that :attr:`LeaderElection.fence` still exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from qdo.curator.bridge import (
    RETRY_INTERVAL,
    await_within,
    create_missing_nodes,
    make_put_error,
    open_borrowed_link,
    retry_until_answered,
    run,
)
from qdo.curator.nodes import check_path
from qdo.errors import CoordinationError, InvalidArgument, SessionLost
from qdo.group.zookeeper.tree import Create, Delete, Link, Rejection, lacks_parent
from qdo.group.zookeeper.tree import State as LinkState
from qdo.loops import Signal, cancel, start_task

LeaderState: TypeAlias = Literal["new", "waiting", "leading", "suspended", "closed"]

ANSWER_TIMEOUT = 30.0
"""Timeout of :meth:`LeaderElection.participants`, in seconds."""
CLOSE_TIMEOUT = 3.0
"""Timeout of :meth:`LeaderElection.close`, in seconds. The node is removed even later, once ZooKeeper answers."""

log = logging.getLogger("qdo.curator")


class Recipe(enum.Enum):
    """The recipe of a contender's nodes. All contenders on one path must use the same recipe.

    The two recipes do not exclude each other. Each sorts the nodes of the other behind its own, so a LeaderSelector
    and a LeaderLatch on one path would both lead.

    Example:
        >>> from qdo.curator.leader import Recipe
        >>> Recipe("latch-")
        <Recipe.LATCH: 'latch-'>
    """

    SELECTOR = "lock-"
    LATCH = "latch-"


class Participant(NamedTuple):
    """A contender as others see it.

    Attributes:
        name: The name that it chose. A LeaderSelector without an id has the address of its machine here.
        leading: True if its node is the first.
        node: Name of its node.
    """

    name: str
    leading: bool
    node: str


def sort_by_turn(children: Iterable[str], recipe: Recipe) -> list[str]:
    """Sorts nodes as Curator does: by the text that follows the last occurrence of the recipe's prefix.

    Example:
        >>> from qdo.curator.leader import Recipe, sort_by_turn
        >>> sort_by_turn(["_c_2b-lock-0000000001", "_c_9e-lock-0000000000", "notes"], Recipe.SELECTOR)
        ['_c_9e-lock-0000000000', '_c_2b-lock-0000000001', 'notes']
    """
    word = recipe.value

    def turn(name: str) -> str:
        _, prefix, suffix = name.rpartition(word)
        return suffix if prefix else name

    return sorted(children, key=turn)


class LeaderElection:
    """A contender in the election at a path; see the module for its states.

    Compatible with Curator 5.9: contenders in both languages may use one path, if they use the same recipe.

    Example:
        With a client of kazoo that is started::

            election = LeaderElection(client, "/reports/leader", name="worker 1")
            election.start()
            if election.wait(60):
                ...                 # this program leads, while election.leading is true
            election.close()

    Args:
        client: A KazooClient, started and stopped by the caller.
        path: Path of the election, the parent of the contenders' nodes. It is created if it is missing.
        name: The name that other contenders see.
        recipe: ``Recipe.SELECTOR`` or ``Recipe.LATCH``; the same for all contenders.
        changed: Called with the new state after each change, in the election's own thread. Its exceptions are logged.

    Raises:
        InvalidArgument: The path is not valid.

    Attributes:
        client: The client.
        path: Path of the election.
        name: The name of this contender.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - kazoo has no types
        path: str,
        *,
        name: str = "",
        recipe: Recipe = Recipe.SELECTOR,
        changed: Callable[[LeaderState], object] | None = None,
    ) -> None:
        check_path("path", path)
        self.path, self.name = path, name
        self.client, self._recipe = client, recipe
        self._listeners = [] if changed is None else [changed]
        self._state: LeaderState = "new"
        self._news = Signal()
        """Notified when the state, the connection or a watched node has changed."""
        self._link: Link | None = None
        self._node = ""
        self._withdrawals: set[asyncio.Task[None]] = set()
        self._contending: asyncio.Task[None] | None = None
        self._states: queue.SimpleQueue[LeaderState] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._call_listeners_until_closed, name=f"election {path}", daemon=True)

    @property
    def state(self) -> LeaderState:
        """One of the states in the module's diagram."""
        return self._state

    @property
    def leading(self) -> bool:
        """True while this contender leads."""
        link = self._link
        return self._state == "leading" and link is not None and link.state == "connected"

    @property
    def fence(self) -> str | None:
        """Path of this contender's node while it leads, else None."""
        node = self._node
        return f"{self.path}/{node}" if self.leading else None

    def start(self) -> None:
        """Enters the election.

        Raises:
            InvalidArgument: It was started before.
        """
        run(self._start())

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until this contender leads or is closed; returns whether it leads.

        Args:
            timeout: Seconds; waits without limit if None.
        """
        return run(self._wait(timeout))

    def listen(self, changed: Callable[[LeaderState], object]) -> None:
        """Adds a function that is called with each new state, as ``changed`` is."""
        self._listeners.append(changed)

    def unlisten(self, changed: Callable[[LeaderState], object]) -> None:
        """Removes a function that :meth:`listen` added."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(changed)

    def close(self) -> None:
        """Leaves the election. Idempotent, never raises."""
        until = time.monotonic() + CLOSE_TIMEOUT
        run(self._close())
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(until - time.monotonic())

    def participants(self) -> tuple[Participant, ...]:
        """Reads all contenders from ZooKeeper, the leader first.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """
        return run(await_within(ANSWER_TIMEOUT, self._read_participants()))

    def _call_listeners_until_closed(self) -> None:
        state: LeaderState = "waiting"
        while state != "closed":
            state = self._states.get()
            for changed in list(self._listeners):
                try:
                    changed(state)
                except Exception:
                    log.exception("a listener of the election at %s failed", self.path)

    async def _read_participants(self) -> tuple[Participant, ...]:
        async with open_borrowed_link(self.client) as link:
            names = await self._list_contenders(link)
            nodes = zip(names, await link.read(f"{self.path}/{name}" for name in names), strict=True)
        contenders = [(name, node.data.decode("utf-8", "replace")) for name, node in nodes if node is not None]
        return tuple(Participant(text, not index, name) for index, (name, text) in enumerate(contenders))

    async def _start(self) -> None:
        if self._state != "new":
            raise InvalidArgument(f"The election at {self.path} was started before. Make another one.")
        self._state = "waiting"
        self._thread.start()
        self._contending = asyncio.create_task(self._contend_forever())

    async def _wait(self, seconds: float | None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.leading and self._state != "closed":
                    await self._news.next.wait()
        return self.leading

    async def _close(self) -> None:
        self._set_state("closed")
        if self._contending is not None:
            await cancel(self._contending)
        if self._withdrawals:
            await asyncio.wait(self._withdrawals, timeout=CLOSE_TIMEOUT)

    def _set_state(self, state: LeaderState) -> None:
        if self._state not in {state, "closed"}:
            self._state = state
            self._states.put(state)
            self._news.notify()

    def _on_link_state(self, state: LinkState) -> None:
        if state == "suspended" and self._state == "leading":
            self._set_state("suspended")
        if state == "lost":
            self._set_state("waiting")
        self._news.notify()

    async def _contend_forever(self) -> None:
        while True:
            # Curator's mark for a node whose creation may be repeated after a lost answer.
            prefix = f"_c_{uuid.uuid4()}-{self._recipe.value}"
            try:
                async with open_borrowed_link(self.client) as link:
                    self._link, link.on_state, link.on_watch = link, self._on_link_state, lambda _: self._news.notify()
                    try:
                        await self._contend(link, prefix)
                    finally:
                        self._set_state("waiting")
                        start_task(self._withdraw(prefix), self._withdrawals)
            except SessionLost:
                """The next session begins with a new node."""
            except CoordinationError as error:
                log.warning("retrying the election at %s: %r", self.path, error)
            if self._withdrawals:
                await asyncio.wait(self._withdrawals)
            await asyncio.sleep(RETRY_INTERVAL)

    async def _contend(self, link: Link, prefix: str) -> None:
        """Creates a node, waits for the lead and keeps it; returns when the node is gone.

        Raises:
            CoordinationError: ZooKeeper refused. Not CoordinationLost: the node keeps its place without a connection.
        """
        node = await retry_until_answered(link, partial(self._enter, link, prefix))
        while True:
            news = self._news.next
            names = await retry_until_answered(link, partial(self._list_contenders, link))
            if node not in names:
                return
            # It watches the node before its own, or its own if that is the first.
            before = names[max(0, names.index(node) - 1)]
            (watched,) = await retry_until_answered(link, partial(link.read, [f"{self.path}/{before}"], watch=True))
            if watched is None:
                continue
            if before == node and watched.session != link.session:
                return
            if before == node and not news.is_set() and link.state == "connected":
                self._node = node
                self._set_state("leading")
            await news.wait()

    async def _enter(self, link: Link, prefix: str) -> str:
        """Creates a node, unless an earlier attempt did and its answer was lost; returns its name."""
        create = Create(f"{self.path}/{prefix}", self.name.encode(), ephemeral=True, sequence=True)
        while not (mine := [name for name in await self._list_contenders(link) if name.startswith(prefix)]):
            (outcome,) = await link.apply([(create,)])
            if lacks_parent(outcome):
                await create_missing_nodes(link, [self.path])
            elif isinstance(outcome, Rejection):
                raise make_put_error(self.path, outcome)
        return mine[0]

    async def _list_contenders(self, link: Link) -> list[str]:
        (names,) = await link.children([self.path])
        return sort_by_turn(names or (), self._recipe)

    async def _withdraw(self, prefix: str) -> None:
        for _ in range(2):  # A request sent when the session ended may be applied in the next one.
            try:
                async with open_borrowed_link(self.client) as link:
                    await retry_until_answered(link, partial(self._remove_nodes, link, prefix))
            except CoordinationError as error:
                reason = error
            else:
                return
        log.info("the node of a contender at %s stays until its session ends: %r", self.path, reason)

    async def _remove_nodes(self, link: Link, prefix: str) -> None:
        names = [name for name in await self._list_contenders(link) if name.startswith(prefix)]
        await link.apply((Delete(f"{self.path}/{name}"),) for name in names)
