"""A group under faults, and then without: crashes, pauses, broken networks, queues created and removed."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from random import random, uniform
from time import perf_counter
from types import SimpleNamespace

from qdo import ConsumerSettings, Retry, WorkerSettings
from qdo.consumer import consumer, fetcher
from qdo.group import discovery as queue_discovery
from qdo.group.protocol import Coordinator
from qdo.group.session_events import SessionOptions
from qdo.group.zookeeper import stored_assignments
from qdo.group.zookeeper.tree import split_into_bundles
from qdo.worker import rights, runs, sources
from qdo.worker.executors import in_process
from tests.replacing import replace_in
from tests.sim.groups.faults import MAX_BAD_ATTEMPTS, MAX_BAD_MESSAGES, STALLED_AFTER, STOPPING, UserFaults
from tests.sim.groups.history import History
from tests.sim.groups.machine import Machine
from tests.sim.groups.member import ConsumerMember, Member, WorkerMember
from tests.sim.groups.network import Habits
from tests.sim.groups.served.web import Web
from tests.sim.groups.service import APPLICATION, STORE, Key, Log, Service
from tests.sim.groups.tree import TIMEOUT, TreeLink
from tests.sim.playing import NAMES, Mutation, Patch, Play
from tests.sim.world import Process, World

JOINING = 0.5
"""Seconds until the first fault."""
UNLIMITED = 1000.0
"""Max seconds of an attempt in a history without bad handlers."""
AFTER = 1.0
"""Seconds after the last fault for which messages are posted."""
OPERATIONS = 2, 100
"""Choices of the max operations in a transaction that sets the target."""
SLOW = 0.4
"""Mean seconds to its coordination of a slow machine."""
BACKLOG = 12.0
"""Max seconds to handle the messages that have waited."""
CALLBACKS = 12.0
"""Max seconds by which bad callbacks delay the rest."""
HANDOVER = 2.0
"""Max seconds from an attempt that cannot be stopped until its partition is assigned again."""
CHECK_SECONDS = 0.5
"""Seconds between two checks of a group that comes to rest."""
KEYS = (Key(("*",)), Key(("*",)), Key(("a*",)), Key(("a*", "b*")), Key(("b*", "c*")))


class Storm:
    """One history, determined by its seed.

    Args:
        seed: Seeds all random choices.

    Attributes:
        webs: The processes of the service that coordinates, if any.
        seconds: Seconds of faults.
        between: Mean seconds between two faults.
        posting: Mean seconds between posts.
        sizes: Choices of the number of members.
        keys: Choices of the rights of all members but the first.
        programs: Choices of members' programs.
        naming: Fraction of members that name their queues.
    """

    webs: Sequence[Web] = ()
    seconds, between, posting = 3.5, 0.35, 0.5
    sizes: Sequence[int] = (3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 8, 10)
    keys: Sequence[Key] = KEYS
    programs: Sequence[type[Member]] = (ConsumerMember, WorkerMember)
    naming = 0.2

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        rng = self.world.rng
        self.settings = ConsumerSettings(
            page=8,
            prefetch_messages=40,
            wait=4.0,
            discover=3.0,
            settle=0.2,
            grace=rng.choice([0.0, 0.0, 4.0]),
            revoke_timeout=rng.choice([0.3, 3.0]),
        )
        self.faults = UserFaults(seed, self.world, self.settings.revoke_timeout)
        keyed = rng.choice([False, True])
        self.work = WorkerSettings(
            # A worker ends if handlers hang in all of its tasks.
            tasks=max(rng.choice([1, 3, 20]), 20 * self.faults.handlers),
            by="header:key" if keyed else None,
            parallel=3,
            window=rng.choice([5, 100]),
            batch=rng.choice([1, 5, 20]),
            retry=Retry(attempts=rng.choice([0, 1, 3]), base=0.2, cap=0.5),
            on_failure="skip",
            commit_messages=rng.choice([3, 50]),
            commit_seconds=0.5,
            drain=self.settings.revoke_timeout,
            stalled_after=STALLED_AFTER if self.faults.handlers else UNLIMITED,
        )
        self.faults.bad_messages = self.work.retry.attempts > 0
        self.service = Service(self.world)
        self.history = self._make_history()
        self.history.patient = self.settings.revoke_timeout > 1.0 and not self.faults.handlers
        self._numbers = itertools.count(1)
        for name in NAMES[: rng.randrange(1, 5)]:
            self.create(name)
        self.machines = [self._make_machine(number) for number in range(rng.choice(self.sizes))]

    @property
    def calm(self) -> float:
        """Max seconds after the last fault until balance is reached.

        The sum of: a session that ends late, the grace of its member, a revocation, two rounds of queue discovery (one
        that fails during the assignment of earlier results), the backlog, bad callbacks, and all bad attempts, because
        these may be at messages of one partition. A worker checks its attempts twice, to stop them and to give them up.
        """
        settings = self.settings
        attempts = MAX_BAD_ATTEMPTS + MAX_BAD_MESSAGES * self.work.retry.attempts
        attempt = STALLED_AFTER + STOPPING + 2 * self.work.commit_seconds + HANDOVER
        faults = CALLBACKS * self.faults.callbacks + attempts * attempt * self.faults.handlers
        return 2 * TIMEOUT + settings.grace + settings.revoke_timeout + 4 * settings.discover + BACKLOG + faults

    def draw_habits(self) -> Habits:
        """Returns how the next machine behaves."""
        return Habits()

    # The coordination

    def _make_history(self) -> History:
        raise NotImplementedError

    def coordinate(self, machine: Machine, links: list[TreeLink]) -> Coordinator:
        """Returns a coordinator for a member. Links that it opens are appended to ``links``."""
        raise NotImplementedError

    def session_of(self, machine: Machine, links: list[TreeLink]) -> int:
        """Returns the present session of a member."""
        raise NotImplementedError

    def ended(self, machine: Machine) -> None:
        """A member has crashed or stopped."""

    def list_faults(self) -> Sequence[Callable[[], None]]:
        """Returns the faults to choose from; those that are more frequent are there several times."""
        raise NotImplementedError

    def _is_seen(self, place: str, owner: int) -> bool:
        """Returns whether a member that must release the partition of a removed queue may see that it is gone."""
        raise NotImplementedError

    def mark(self) -> str:
        return f"{next(self._numbers):06x}"

    def run(self) -> History:
        """Runs the faults, heals all, and waits for the group to rest.

        Returns the history, with violations in ``wrong``.
        """
        with self._seed_randomness():
            for machine in self.machines:
                self.world.after(self.world.random_time(0.5), machine.begin)
            end = self.faults.end = self.world.now + self.seconds
            self._cause_faults_until(end)
            self._post_until(end + AFTER)
            self.world.run(end)
            self.heal()
            self.world.run(end + AFTER)
            self.history.wrong += self._judge_at_rest(end + self.calm)
            self.world.end()
        return self.history

    @contextmanager
    def _seed_randomness(self) -> Iterator[None]:
        rng = self.world.rng

        def now() -> float:
            assert Process.present is not None
            return Process.present.clock()

        with ExitStack() as stack:
            operations = rng.choice(OPERATIONS)
            options = partial(SessionOptions, now=now, draw=rng.random, recheck=3600.0)
            stack.enter_context(replace_in(consumer, SessionOptions, options))
            # The parts of members' names. The order of names matters.
            stack.enter_context(replace_in(consumer, socket, SimpleNamespace(gethostname=lambda: "host")))
            stack.enter_context(replace_in(consumer, os, SimpleNamespace(getpid=lambda: 1)))
            stack.enter_context(replace_in(consumer, secrets, SimpleNamespace(token_hex=lambda _: self.mark())))
            stack.enter_context(
                replace_in(
                    stored_assignments, split_into_bundles, lambda changes, _: split_into_bundles(changes, operations)
                )
            )
            stack.enter_context(replace_in(fetcher, uniform, rng.uniform))
            stack.enter_context(replace_in(queue_discovery, uniform, rng.uniform))
            stack.enter_context(replace_in(rights, uniform, rng.uniform))
            stack.enter_context(replace_in(sources, random, rng.random))
            stack.enter_context(replace_in(runs, runs._STOPPING_SECONDS, STOPPING))
            stack.enter_context(replace_in(in_process, perf_counter, lambda: self.world.now))
            yield

    def _make_machine(self, number: int) -> Machine:
        rng = self.world.rng
        key = KEYS[0] if number == 0 else rng.choice(self.keys)
        wants = tuple(sorted(rng.sample(NAMES, 3))) if number and rng.random() < self.naming else ()
        program = rng.choice(self.programs)
        if wants and program is WorkerMember:  # it refuses to start while it lacks rights for a named queue
            program = ConsumerMember
        return Machine(self, f"m{number}", program, static=rng.random() < 0.5, wants=wants, key=key)

    def create(self, name: str) -> None:
        self.service.queues[name] = {number: Log() for number in range(1, self.world.rng.randrange(2, 5))}
        self.service.wake(name)

    def _post_until(self, end: float) -> None:
        def post() -> None:
            rng = self.world.rng
            if self.service.queues:
                name = rng.choice(sorted(self.service.queues))
                for _ in range(rng.randrange(1, 4)):
                    self.service.post(name, rng.choice(list(self.service.queues[name])))
            if self.world.now < end:
                self.world.after(self.world.random_time(self.posting), post)

        post()

    def remove(self, name: str) -> None:
        """Removes a queue, unless it is missing or the last one."""
        if len(self.service.queues) > 1 and self.service.queues.pop(name, None) is not None:
            self.service.wake(name)

    # Faults

    def _cause_faults_until(self, end: float) -> None:
        def strike() -> None:
            if self.world.now >= end:
                return
            self.world.rng.choice(deeds)()
            self.world.after(self.world.random_time(self.between), strike)

        deeds = self.list_faults()
        self.world.after(JOINING + self.world.random_time(self.between), strike)

    def pick_machine(self) -> Machine:
        return self.world.rng.choice(self.machines)

    def _crash(self) -> None:
        machine = self.pick_machine()
        if machine.up:
            machine.crash()
            self.world.after(self.world.random_time(3.0), machine.begin)

    def _pause(self) -> None:
        self.pick_machine().pause(self.world.random_time(2.5))

    def _cut_service(self) -> None:
        machine = self.pick_machine()
        machine.no_service = True

        def heal() -> None:
            machine.no_service = False

        self.world.after(self.world.random_time(2.0), heal)

    def _leave_and_restart(self) -> None:
        machine = self.pick_machine()
        machine.leave()
        self._restart_after_leaving(machine)

    def _restart_after_leaving(self, machine: Machine) -> None:
        """Begins the machine once its life has ended; checks again and again."""
        life = machine.life

        def look() -> None:
            if machine.life == life:
                self.world.after(CHECK_SECONDS, look)  # it is still leaving
            else:
                machine.begin()

        self.world.after(1.0 + self.world.random_time(2.0), look)

    def _replace(self) -> None:
        """Starts another machine under the name of a living static member, which is slowed and crashes later."""
        machine = self.pick_machine()
        if not (machine.up and machine.static):
            return
        twin = Machine(self, machine.name, machine.program, static=True, wants=machine.wants, key=machine.key)
        self.machines[self.machines.index(machine)] = twin
        machine.gone = True
        machine.latency = SLOW
        if self.world.rng.random() < 0.5:
            machine.leave()
        self.world.after(self.world.random_time(0.3), twin.begin)
        self.world.after(0.3 + self.world.random_time(2.5), machine.crash)

    def _create_or_remove_queue(self) -> None:
        rng = self.world.rng
        name = rng.choice(NAMES)
        if name in self.service.queues:
            self.remove(name)
        else:
            self.create(name)

    def add_partition(self) -> None:
        if self.service.queues:
            queue = self.service.queues[self.world.rng.choice(sorted(self.service.queues))]
            queue[len(queue) + 1] = Log()

    def change_rights(self) -> None:
        machine = self.world.rng.choice(self.machines[1:])
        machine.key = self.world.rng.choice(KEYS)
        for name in self.service.queues:
            self.service.wake(name)

    def heal(self) -> None:
        for machine in self.machines:
            machine.no_tree = machine.no_service = False
            machine.loses_claim = False
            machine.speed_up()
            machine.wake()
            if machine is self.machines[0] and machine.up:
                self._restart_after_leaving(machine)  # it may be leaving
            elif machine is self.machines[0] or self.world.rng.random() < 0.7:
                machine.begin()

    # Checks at the end

    def _judge_at_rest(self, end: float) -> list[str]:
        """Waits until no rule is violated at two checks in a row, or until the end. Returns the violations."""
        problems = self.judge()
        while self.world.now < end:
            before = problems
            self.world.run(min(end, self.world.now + CHECK_SECONDS))
            problems = self.judge()
            if not (problems or before):
                break
        return problems

    def judge(self) -> list[str]:
        """Returns the violations of a group at rest.

        Messages are handled and recorded. Members that live and may read a queue share its partitions evenly. Removed
        queues have no owners, as far as somebody may see that.
        """
        problems: list[str] = []
        owners = self.history.owners
        alive = [machine for machine in self.machines if machine.up]
        by_loop = {machine.loop: machine for machine in alive}
        existing = {
            f"{STORE}/{APPLICATION}/{name}/{number}" for name, queue in self.service.queues.items() for number in queue
        }
        gone = owners.keys() - existing
        counts = Counter(by_loop.get(self.history.loops[owners[place]]) for place in sorted(owners.keys() & existing))  # type: ignore[call-overload]
        for name, queue in sorted(self.service.queues.items()):
            takers = [machine for machine in alive if machine.takes(name)]
            for number, log in queue.items():
                place = f"{STORE}/{APPLICATION}/{name}/{number}"
                if log.handled < len(log.messages):
                    problems.append(f"lost: {place} was handled up to {log.handled} of {len(log.messages)}")
                if log.messages and self.history.offsets.get(place) != log.messages[-1].id:
                    problems.append(f"unrecorded: {place}")
                owner = by_loop.get(self.history.loops[owners[place]]) if place in owners else None  # type: ignore[call-overload]
                if owner is None:
                    problems.append(f"balance: nobody who lives owns {place}")
                elif owner not in takers:
                    problems.append(f"rights: {owner.name} keeps {place}")
                elif not gone and any(counts[owner] - counts[other] > 1 for other in takers):
                    problems.append(f"balance: {owner.name} has too much: {sorted(counts.values())}")
        problems.extend(f"gone: {place} has an owner" for place in sorted(gone) if self._is_seen(place, owners[place]))
        return problems


def run_history(seed: int, kind: Callable[[int], Storm]) -> History:
    """Runs one history, which afterwards holds nothing of its world."""
    history = kind(seed).run()
    history.forget_world()
    Process.present = None
    return history


def play(kind: Callable[[int], Storm]) -> Play:
    return lambda seed: run_history(seed, kind).wrong


def broken(kind: Callable[[int], Storm], rules: str, seed: int, *patches: Patch) -> Mutation:
    """Returns a mutation that breaks one of some rules in the history of a seed."""
    return Mutation(play(kind), tuple(f"{rule}:" for rule in rules.split()), patches, seed)
