"""All callers of the Cassandra store that change a row by compare-and-set, on a node that fails meanwhile.

The store runs in simulated time (:mod:`tests.sim.cassandra.loops`), so a missing answer takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from queuey.errors import QueueyError, StoreUnavailable
from queuey.messages import LogEntry, Named, NewMessage, OffsetChange, PostKey, Queue, QueueSpec, Record
from queuey.storage import bridge
from queuey.storage.cassandra import CassandraStore
from queuey.storage.cassandra.admin import migrations, stored_timing
from queuey.storage.cassandra.catalogue import queue_cache
from queuey.storage.cassandra.driver import Done, Encoded, InDoubt, Request, Statement
from queuey.storage.cassandra.store import (
    applications,
    claim_logs,
    ledger,
    names,
    offsets,
    queues,
    records,
)
from queuey.storage.cassandra.timing import ONE_CENTRE_TIMING, make_settled
from tests.backends import APP
from tests.sim.cassandra.cluster import Cluster, NetworkFaults
from tests.sim.cassandra.cql import command
from tests.sim.cassandra.messages import Site
from tests.sim.world import World, begin

T = TypeVar("T")
Fate = Literal["well", "unsent", "lost", "rival", "none"]
"""The fate of one attempt: it is answered, does not arrive, is applied without an answer, arrives after the change of
another process, or certainly was not sent.
"""
RIVAL: dict[str, Any] = {"bigint": 99, "int": 1 << 20, "text": "a rival"}
"""The token of that other process, by its type."""
OPENING_SECONDS, LONGEST_CALL = 1.0, 60.0
RIVAL_SECONDS = 0.1
"""Seconds after which a rival's change has reached all nodes."""


class Scene:
    """A store on a simulated cluster, with an application, a queue, and a fate for each attempt of a change."""

    def __init__(self) -> None:
        self.world = World(1)
        self.site = Site(self.world, Cluster(self.world, NetworkFaults()))
        self.cluster = self.site._cluster
        self.store: CassandraStore = self.site.store
        self.attempts: list[float] = []
        """Times of the attempts, up to the first one that is decided."""
        self._send = self.store._driver.send
        self._fates: Iterator[Fate] = iter(())
        self.unreadable = False
        """Whether all reads fail after the first attempt."""
        self._caller: Caller | None = None
        self._earlier = 0
        self.store._driver.send = self._send_or_not  # type: ignore[method-assign]
        self.world.run(self.world.now + OPENING_SECONDS)
        self.call(lambda: bridge.run(self.store.applications.create_application(APP)))
        self.queue: Queue = self.call(
            lambda: bridge.run(self.store.catalogue.create_queue(APP, "orders", QueueSpec()))
        )[0]

    def call(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it returns
        """Calls a function in a thread of the store while simulated time passes.

        Returns its result, or raises its error.
        """
        ends: list[Any] = []

        begin(self.site.core, self.site.core.in_thread(work), lambda *end: ends.extend(end))
        until = self.world.now + LONGEST_CALL
        while not ends and self.world.now < until:
            self.world.run(self.world.now + 0.1)
        result, error = ends
        if error is not None:
            raise error
        return result

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        result: T = self.call(lambda: self.store._driver.calls.run(work))
        return result

    def change(self, caller: Caller, fates: Iterator[Fate]) -> str:
        """Makes a change whose attempts have these fates. Returns its result, outcome or the name of its error."""
        work = caller.prepare(self)
        self._caller, self._fates, self._earlier = caller, fates, caller.before
        try:
            result = self.call(work)
        except StoreUnavailable as error:
            return error.outcome
        except QueueyError as error:
            return type(error).__name__
        return "done" if result is None or isinstance(result, tuple | list) else str(result)

    def _send_or_not(self, request: Request | Encoded, done: Done) -> None:
        """Gives the caller's statement its next fate, and sends every other request."""
        caller = self._caller
        if self.unreadable and self.attempts and request.statement.reads and request.host is None:
            done(None, StoreUnavailable("no node is up"))
            return
        if caller is None or not isinstance(request, Request) or request.statement != caller.statement:
            self._send(request, done)
            return
        if self._earlier:
            self._earlier -= 1
            self._send(request, done)
            return
        self.attempts.append(self.world.now)
        fate = next(self._fates, "well")
        if fate in {"well", "rival"}:
            self._caller = None
        match fate:
            case "unsent":
                done(None, InDoubt("the node does not say"))
            case "none":
                done(None, StoreUnavailable("no node is up"))
            case "lost":
                self._send(request, lambda *_: done(None, InDoubt("the answer was lost")))
            case "rival":
                self.cluster.ask(caller.rival_change(request), lambda *_: None)
                self.world.after(RIVAL_SECONDS, partial(self._send, request, done))
            case "well":
                self._send(request, done)


@dataclass(frozen=True)
class Caller:
    """A caller that changes a row.

    Attributes:
        prepare: Prepares a change, and returns the function that makes it.
        statement: The statement of the change.
        refused: How it ends if another process was first.
        overtaken: How it ends if it was in doubt before; by default as ``refused``.
        lost: How it ends if it was applied without an answer.
        unsent: How it ends if it certainly was not sent.
        doubtful: How it ends if it stays in doubt.
        token: The column in which another process writes its token.
        others: Further columns that the other process writes, with their values.
        before: Number of earlier changes by the same statement.
        instead: Statement and values of the other process's change, given the values of this one.
        reads_on: Whether it reads and begins again after a refusal, as if it was not in doubt: its caller either finds
            the requested value, or its value was replaced by another process's at once.
        repeats: Whether it repeats changes in doubt. Otherwise it reports them at once, and its process repeats them.
    """

    prepare: Callable[[Scene], Callable[[], Any]]
    statement: Statement
    refused: str
    overtaken: str = ""
    lost: str = "done"
    unsent: str = "none"
    doubtful: str = "unknown"
    token: str = "version"
    others: dict[str, Any] = field(default_factory=dict)
    before: int = 0
    instead: Callable[[Any], tuple[Statement, Any]] | None = None
    reads_on: bool = False
    repeats: bool = True

    def rival_change(self, request: Request) -> Request:
        """Returns the change of another process, which read the same row and writes its own token into it."""
        if self.instead is not None:
            statement, values = self.instead(request.values)
            return Request(statement, values, serial="SERIAL")
        parsed = command(request.statement.cql)
        if parsed.verb == "DELETE":
            keys = " AND ".join(f"{name} = ?" for name, _ in parsed.markers[:-1])
            text = f"UPDATE {parsed.table.name} SET version = ? WHERE {keys} IF version = ?"
            return Request(Statement(text, idempotent=False), (RIVAL["bigint"], *request.values), serial="SERIAL")
        written = [name for name, _ in parsed.markers]
        kind = parsed.table.types[self.token]
        values = list(request.values)
        for name, value in {self.token: RIVAL[kind], **self.others}.items():
            values[written.index(name)] = value
        return Request(request.statement, values, serial="SERIAL")


# The callers


def create_queue(scene: Scene) -> Callable[[], Any]:
    return lambda: f"created {bridge.run(scene.store.catalogue.create_queue(APP, 'other', QueueSpec()))[1]}"


def cover_long_message(scene: Scene) -> Callable[[], Any]:
    row, store = scene.run(scene.store._parts.rows.find_current(scene.queue)), scene.store
    return lambda: (store._driver.calls.run(store._parts.rows.cover(row, (), 10_000)),)


def new_record(scene: Scene) -> Callable[[], Any]:
    return lambda: [bridge.run(scene.store.records.set_record(Record("schedule", APP, "r", b"value", 5)))]


def changed_record(scene: Scene) -> Callable[[], Any]:
    record = scene.call(new_record(scene))[0]
    return lambda: [bridge.run(scene.store.records.set_record(record))]


def removed_record(scene: Scene) -> Callable[[], Any]:
    record = scene.call(new_record(scene))[0]
    return lambda: bridge.run(scene.store.records.remove_record(record))


DIGEST = b"\1" * 32


def add_key(scene: Scene) -> Callable[[], Any]:
    return lambda: [bridge.run(scene.store.applications.add_key(APP, DIGEST))]


def add_key_again(scene: Scene) -> Callable[[], Any]:
    keys: Any = scene.store.applications
    scene.run(keys._add_entry(APP, DIGEST))
    return add_key(scene)


def revoke_key(scene: Scene) -> Callable[[], Any]:
    [key] = scene.call(add_key(scene))
    return lambda: bridge.run(scene.store.applications.revoke_key(APP, key.id))


def expire_key(scene: Scene) -> Callable[[], Any]:
    [key] = scene.call(add_key(scene))
    return lambda: [bridge.run(scene.store.applications.expire_key(APP, key.id, 5.0))]


def set_offset(scene: Scene, *, compare: bool) -> Callable[[], Any]:
    change = OffsetChange(1, (5, 5), compare=compare)
    return lambda: bridge.run(scene.store.offsets.set_offsets(scene.queue, "group", [change]))


def forget_group(scene: Scene) -> Callable[[], Any]:
    scene.call(set_offset(scene, compare=False))
    return lambda: bridge.run(scene.store.offsets.delete_group(scene.queue, "group"))


def append_entry(scene: Scene) -> Callable[[], Any]:
    logs, entry = scene.store.claim_logs, LogEntry(1, b"entry")
    return lambda: f"applied {bridge.run(logs.append_entry(scene.queue, 1, entry))}"


def remove_log(scene: Scene) -> Callable[[], Any]:
    scene.call(append_entry(scene))
    logs: Any = scene.store.claim_logs
    return lambda: scene.store._driver.calls.run(logs.remove_logs(scene.queue.qid, 1))


def post(scene: Scene) -> Callable[[], Any]:
    items, key = [NewMessage("x", 1, 3600)], PostKey("key", b"content", 60)
    return lambda: f"replayed {bridge.run(scene.store.keyed_posts.append_once(scene.queue, items, key)).replayed}"


def set_name(scene: Scene) -> Callable[[], Any]:
    return lambda: [bridge.run(scene.store.names.write_named(scene.queue, "name", NewMessage("x", 1, 3600), b"", None))]


def clear_name(scene: Scene) -> Callable[[], Any]:
    [named] = scene.call(set_name(scene))
    return lambda: [bridge.run(scene.store.names.write_named(scene.queue, "name", None, b"", named))]


def settle_name(scene: Scene) -> Callable[[], Any]:
    cleared: list[Named] = scene.call(clear_name(scene))
    return lambda: bridge.run(scene.store.names.settle_named(scene.queue, "name", cleared[0]))


def set_times(scene: Scene) -> Callable[[], Any]:
    store = scene.store
    timing = make_settled(ONE_CENTRE_TIMING, "ours")
    return lambda: f"written {stored_timing._compare_and_swap(store._driver, store._options, timing, None)}"


def lock(scene: Scene) -> migrations._Lock:
    running = migrations.Running(known=())
    return migrations._Lock(scene.store._driver, scene.store._options, lambda _line: None, running)


def take_lock(scene: Scene) -> Callable[[], Any]:
    """Returns a call that acquires the lock and returns its owner, ``ours`` for this one."""
    mine = lock(scene)
    return lambda: "ours" if (holder := mine._acquire(None)) == mine._owner else holder


def release_lock(scene: Scene) -> Callable[[], Any]:
    mine = lock(scene)
    scene.call(lambda: mine._acquire(None))
    return lambda: [mine.transactions.wait(migrations._CLEAR_LOCK, (mine._owner,))]


def record_migration(scene: Scene) -> Callable[[], Any]:
    return lambda: [lock(scene).transactions.wait(migrations._RECORD_MIGRATION, (7, "name", "sum", 1.0))]


KEYED, NAMED = names._KEY_STATEMENTS.change, names._NAME_STATEMENTS.change
NEXT_ENTRY = Statement(claim_logs._ADVANCE_NUMBER.cql, idempotent=False)

CALLERS = {
    "create an application": Caller(
        lambda scene: lambda: bridge.run(scene.store.applications.create_application("new")),
        applications._INSERT_APPLICATION,
        "ApplicationExists",
    ),
    "add a key": Caller(add_key, applications._ADD_KEY, "done"),
    "add a key's entry": Caller(add_key, applications._ADD_ENTRY, "done"),
    "renew a key's entry": Caller(add_key_again, applications._RENEW_ENTRY, "done", reads_on=True),
    "revoke a key": Caller(revoke_key, applications._REMOVE_KEY, "done"),
    "remove a key's entry": Caller(revoke_key, applications._REMOVE_ENTRY, "done", unsent="done", doubtful="done"),
    "expire a key": Caller(expire_key, applications._EXPIRE_KEY, "done", reads_on=True),
    "create a queue": Caller(
        create_queue, queues._INSERT_QUEUE, "created False", lost="created True", others={"uid": 98, "qid": 97}
    ),
    "update a queue": Caller(
        lambda scene: lambda: [bridge.run(scene.store.catalogue.update_queue(scene.queue, QueueSpec(ttl=60)))],
        queues._UPDATE_QUEUE,
        "QueueChanged",
        "unknown",
    ),
    "purge a queue": Caller(
        lambda scene: lambda: [bridge.run(scene.store.catalogue.purge_queue(scene.queue))],
        queues._PURGE_QUEUE,
        "QueueChanged",
        "unknown",
    ),
    "delete a queue": Caller(
        lambda scene: lambda: bridge.run(scene.store.catalogue.delete_queue(scene.queue)),
        queues._DELETE_QUEUE,
        "QueueChanged",
    ),
    "cover long messages": Caller(
        cover_long_message, queue_cache._RAISE_LONGEST, "done", token="longest_ttl", reads_on=True
    ),
    "enter into the ledger": Caller(
        lambda scene: lambda: [bridge.run(scene.store.ledger.enter("work", 1, b"value", expected=None))],
        ledger._UPDATE_ENTRY,
        "done",
        reads_on=True,
    ),
    "set an offset": Caller(partial(set_offset, compare=False), offsets._SWAP_VERSION, "done", reads_on=True),
    "compare and set an offset": Caller(partial(set_offset, compare=True), offsets._SWAP_VERSION, "done", "unknown"),
    "remove a group": Caller(forget_group, offsets._SWAP_VERSION, "done", reads_on=True),
    "create a record": Caller(new_record, records._INSERT_RECORD, "RecordChanged", "unknown"),
    "change a record": Caller(changed_record, records._UPDATE_RECORD, "RecordChanged", "unknown"),
    "remove a record": Caller(removed_record, records._DELETE_RECORD, "RecordChanged", "unknown"),
    "remove a claim log": Caller(
        remove_log, claim_logs._DELETE_NUMBERS, "done", instead=lambda values: (NEXT_ENTRY, (2, *values[:2], 1))
    ),
    "append to a claim log": Caller(
        append_entry, claim_logs._ADVANCE_NUMBER, "applied False", lost="unknown", token="last_number", repeats=False
    ),
    "begin a post under a key": Caller(post, KEYED, "KeyInUse", lost="replayed False"),
    "end a post under a key": Caller(
        post,
        KEYED,
        "replayed False",
        lost="replayed False",
        unsent="unknown",
        others={"state": "abandoned"},
        before=1,
    ),
    "begin a value of a name": Caller(set_name, NAMED, "NameChanged"),
    "end a value of a name": Caller(
        set_name, NAMED, "NameChanged", "unknown", unsent="unknown", others={"state": "abandoned"}, before=1
    ),
    "clear a name": Caller(clear_name, NAMED, "NameChanged", "unknown"),
    "settle a name": Caller(settle_name, NAMED, "done"),
    "write the times": Caller(
        set_times, stored_timing._SWAP_TIMING, "written False", lost="written True", token="timing"
    ),
    "acquire the lock": Caller(take_lock, migrations._SET_LOCK, "a rival", lost="ours", token="lock"),
    "release the lock": Caller(
        release_lock,
        migrations._CLEAR_LOCK,
        "done",
        instead=lambda values: (migrations._SET_LOCK, (9, "a rival", *values)),
    ),
    "record a migration": Caller(record_migration, migrations._RECORD_MIGRATION, "done", token="name"),
}
