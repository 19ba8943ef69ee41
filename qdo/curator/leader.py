"""One leader among Python and Java programs: the elections of Curator's LeaderSelector and LeaderLatch.

States of a contender::

    new ──start──► waiting ──(its node is the first)──► leading ◄──(RECONNECTED, the node is still its own)──┐
                      ▲                                    │                                                 │
                      │                                    ├──(SUSPENDED: the connection broke)──────► suspended
                      │                                    │                                                 │
                      └──────(LOST: the session has ended; or the node was removed)──────────────────────────┘
    any ──close──► closed (final)

A contender leads in the state ``leading`` alone. While it is suspended, others may already lead: it must change
nothing. After LOST it stands again by itself, with a new node behind all others.

A program that stands still (a long pause, SIGSTOP) learns late that its session has ended. What must never happen
after that belongs into a transaction with a check that :attr:`LeaderElection.fence` still exists.
"""

from __future__ import annotations

import enum
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import KazooState
from kazoo.recipe.lock import Lock
from kazoo.retry import KazooRetry

from qdo.curator.options import check_path
from qdo.curator.znodes import Znodes
from qdo.errors import InvalidArgument

LeaderState: TypeAlias = Literal["new", "waiting", "leading", "suspended", "closed"]

ANSWER = 30.0
"""Timeout of :meth:`LeaderElection.participants`, in seconds."""
LONGEST_PAUSE = 1.0
"""Max seconds between two tries."""
CLOSING = 3.0
"""Timeout of :meth:`LeaderElection.close`, in seconds. The node is removed after that, too, once ZooKeeper answers."""

log = logging.getLogger("qdo.curator")


class Recipe(enum.Enum):
    """The recipe whose nodes a contender makes: all contenders on one path use the same.

    The two do not exclude each other. Each recipe sorts the nodes of the other behind its own, so that a LeaderSelector
    and a LeaderLatch on one path both lead.

    Example:
        >>> from qdo.curator.leader import Recipe
        >>> Recipe("latch-")
        <Recipe.LATCH: 'latch-'>
    """

    SELECTOR = "lock-"
    LATCH = "latch-"


class Participant(NamedTuple):
    """A contender as all see it.

    Attributes:
        name: What it called itself. A LeaderSelector without an id has the address of its machine here.
        leading: Its node is the first.
        node: Name of its node.
    """

    name: str
    leading: bool
    node: str


def in_turn(children: Iterable[str], recipe: Recipe) -> list[str]:
    """Sorts nodes as Curator does: by what follows the last appearance of the recipe's word, as text.

    Example:
        >>> from qdo.curator.leader import Recipe, in_turn
        >>> in_turn(["_c_2b-lock-0000000001", "_c_9e-lock-0000000000", "notes"], Recipe.SELECTOR)
        ['_c_9e-lock-0000000000', '_c_2b-lock-0000000001', 'notes']
    """
    word = recipe.value

    def turn(name: str) -> str:
        _, found, behind = name.rpartition(word)
        return behind if found else name

    return sorted(children, key=turn)


class Candidacy(Lock):  # type: ignore[misc]
    """Kazoo's lock with nodes that Curator's contenders count, and that no broken connection leaves behind.

    Args:
        client: Of kazoo, started.
        path: Of the election.
        name: Data of the node.
        recipe: The word in the node's name.
        given_up: Returns True to stop trying.
    """

    def __init__(self, client: Any, path: str, name: str, recipe: Recipe, given_up: Callable[[], bool]) -> None:  # noqa: ANN401 - kazoo has no types
        self._NODE_NAME = recipe.value
        self._EXCLUDE_NAMES = [recipe.value]
        super().__init__(client, path, name)
        # Curator's mark for a node whose creation may be repeated after a lost answer.
        self.prefix = f"_c_{uuid.uuid4()}-{recipe.value}"
        self.create_path = f"{path.rstrip('/')}/{self.prefix}"
        self._retry = KazooRetry(
            max_tries=None, max_delay=LONGEST_PAUSE, interrupt=given_up, sleep_func=client.handler.sleep_func
        )

    def owner(self, watch: Callable[[object], None]) -> int | None:
        """Returns the session that the node belongs to and watches it; None: it is gone. Raises KazooException."""
        try:
            _, facts = self.client.get(f"{self.path}/{self.node}", watch)
        except NoNodeError:
            return None
        return int(facts.ephemeralOwner)

    def withdraw(self) -> None:
        """Removes the node, as soon as ZooKeeper answers. Only a client that was stopped leaves it to its session."""
        retry = KazooRetry(max_tries=-1, max_delay=LONGEST_PAUSE, sleep_func=self.client.handler.sleep_func)
        try:
            retry(self._remove)
        except KazooException as error:
            log.info("the node of a contender at %s is left to the end of its session: %r", self.path, error)

    def _remove(self) -> None:
        try:
            node = self._find_node()
            if node:
                self._delete_node(node)
        except NoNodeError:
            """The path is gone, or the node."""


class LeaderElection:
    """A contender for the lead at a path; see the module for its states.

    Compatible with Curator 5.9: a path may have contenders of both languages, of one recipe.

    Example:
        With a client of kazoo that is started::

            election = LeaderElection(client, "/reports/leader", name="worker 1")
            election.start()
            if election.wait(60):
                ...                 # this program leads, while election.leading is true
            election.close()

    Args:
        client: A KazooClient, started by the caller, who stops it as well.
        path: Of the election, without the nodes in it; made if it is missing.
        name: Other contenders see it.
        recipe: ``Recipe.SELECTOR`` or ``Recipe.LATCH``; the same for all contenders.
        changed: Called with the new state after each change, in the election's own thread. What it raises is logged.

    Raises:
        InvalidArgument: The path is none.

    Attributes:
        client: As given.
        path: Of the election.
        name: As given.
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
        self._news = threading.Condition()
        self._state: LeaderState = "new"
        self._told: LeaderState = "new"
        self._heard = 0
        self._connected = False
        self._closing = threading.Event()
        self._candidacy: Candidacy | None = None
        self._thread = threading.Thread(target=self._run, name=f"election {path}", daemon=True)

    @property
    def state(self) -> LeaderState:
        """A state of the module."""
        return self._state

    @property
    def leading(self) -> bool:
        """This contender leads."""
        return self._state == "leading"

    @property
    def fence(self) -> str | None:
        """Path of the node that makes it the leader; None while it does not lead."""
        candidacy = self._candidacy
        return f"{self.path}/{candidacy.node}" if self.leading and candidacy is not None else None

    def start(self) -> None:
        """Begins to stand.

        Raises:
            InvalidArgument: It was started before.
        """
        with self._news:
            if self._state != "new":
                raise InvalidArgument(f"The election at {self.path} was started before. Make another one.")
            self._state = "waiting"
        self.client.add_listener(self._listen)
        self._connected = self.client.connected
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until this contender leads or is closed; returns whether it leads.

        Args:
            timeout: Seconds; None: without an end.
        """
        with self._news:
            self._news.wait_for(lambda: self._state in {"leading", "closed"}, timeout)
            return self.leading

    def listen(self, changed: Callable[[LeaderState], object]) -> None:
        """Adds a function that is called as ``changed`` is."""
        with self._news:
            self._listeners.append(changed)

    def unlisten(self, changed: Callable[[LeaderState], object]) -> None:
        """Removes a function."""
        with self._news:
            self._listeners = [each for each in self._listeners if each != changed]

    def close(self) -> None:
        """Gives the lead up and stands no more. Idempotent, never raises."""
        self._closing.set()
        with self._news:
            self._state = "closed"
            candidacy = self._candidacy
            self._news.notify_all()
        if candidacy is not None:
            candidacy.cancel()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(CLOSING)

    def participants(self) -> tuple[Participant, ...]:
        """Returns all contenders, the leader first, as ZooKeeper has them now.

        Raises:
            CoordinationError: ZooKeeper did not answer or refused.
        """
        znodes = Znodes(self.client)
        children = in_turn(znodes.children(self.path).get(ANSWER) or (), self._recipe)
        there = [(name, znodes.read(f"{self.path}/{name}")) for name in children]
        found: list[Participant] = []
        for name, answer in there:
            node = answer.get(ANSWER)
            if node is not None:
                found.append(Participant(node.data.decode("utf-8", "replace"), not found, name))
        return tuple(found)

    def _listen(self, state: str) -> bool:
        """Called in kazoo's thread with a state of the connection; returns True to be called no more."""
        with self._news:
            self._heard += 1
            self._connected = state == KazooState.CONNECTED
            if state == KazooState.SUSPENDED and self._state == "leading":
                self._state = "suspended"
            if state == KazooState.LOST and self._state in {"leading", "suspended"}:
                self._state = "waiting"
            self._news.notify_all()
        return self._closing.is_set()

    def _look_again(self, _: object) -> None:
        with self._news:
            self._heard += 1
            self._news.notify_all()

    def _run(self) -> None:
        while not self._closing.is_set():
            candidacy = Candidacy(self.client, self.path, self.name, self._recipe, self._closing.is_set)
            with self._news:
                self._candidacy = candidacy
            try:
                self._stand(candidacy)
            except (KazooException, InterruptedError) as error:
                if not self._closing.is_set():
                    log.warning("the election at %s is tried again: %r", self.path, error)
            with self._news:
                self._state = "closed" if self._closing.is_set() else "waiting"
            self._notify()
            candidacy.withdraw()
            self._closing.wait(LONGEST_PAUSE / 10)
        self._notify()

    def _stand(self, candidacy: Candidacy) -> None:
        """Waits for the lead and keeps it; returns when the node is gone, or the election is closed."""
        if self._closing.is_set():
            return
        candidacy.acquire()
        while True:
            with self._news:
                self._news.wait_for(lambda: self._connected or self._closing.is_set())
                heard = self._heard
            if self._closing.is_set() or candidacy.owner(self._look_again) != self._session:
                return
            with self._news:
                # News may have ended it meanwhile.
                if self._heard == heard and not self._closing.is_set():
                    self._state = "leading"
                    self._news.notify_all()
            self._notify()
            with self._news:
                self._news.wait_for(lambda: self._heard != heard or self._closing.is_set())  # noqa: B023 - it ends before the next round
            self._notify()

    @property
    def _session(self) -> int:
        known = self.client.client_id
        return known[0] if known else -1

    def _notify(self) -> None:
        """Calls the listeners if the state is new."""
        with self._news:
            state, self._told, before = self._state, self._state, self._told
            listeners = list(self._listeners) if state != before else []
        for changed in listeners:
            try:
                changed(state)
            except Exception:
                log.exception("what was to hear of the election at %s failed", self.path)
