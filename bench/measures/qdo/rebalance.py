"""Measures how long a rebalance takes, and whether other members' work stops during it."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench import member
from bench.harness import Bench, Void, measure
from bench.load import traffic
from bench.member import POLL_INTERVAL, MemberState
from bench.results import Report, Row, Verdict
from bench.started import keepers, service
from bench.started.processes import ROOT, bench_package, inherited_environment
from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

QUEUES = [f"q{number}" for number in range(1, 6)]
PARTITIONS_PER_QUEUE = 200
PARTITIONS = PARTITIONS_PER_QUEUE * len(QUEUES)
MEMBERS = 10
QUIET_SECONDS = 0.7
"""Duration of each of two phases without changes: before a measurement, and the measurement."""
CHANGE_SECONDS = 1.5
"""Time after a join or leave in which the members are not queried."""
ROUND_SECONDS = 7
START_SECONDS = 20
"""Start-up time, in seconds; the queues have enough messages for it and for all rounds."""
MESSAGES_PER_APPEND = 5
"""Messages of each partition per append."""
CHANGE_TIMEOUT = 60.0
"""Timeout for a change of the group to take effect, in seconds."""
QUERY_INTERVAL = 0.02
"""Seconds between two queries of the members' states."""


class Member:
    """A child process that answers each command with one line."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def begin(self, command: str) -> None:
        """Sends a command; call :meth:`end` next."""
        assert self._child.stdin is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()

    def end(self) -> bytes:
        """Returns the answer to the command.

        Raises:
            Void: The process ended.
        """
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise Void(f"a member ended with {self._child.wait(10)}")
        return line.encode()

    def do(self, command: str) -> float:
        """Runs ``join``, ``leave`` or ``mark``; returns the time before it."""
        self.begin(command)
        return msgspec.json.decode(self.end(), type=float | None) or 0.0


@dataclass(frozen=True)
class Change:
    """One rebalance.

    Attributes:
        seconds: From the call to join or leave until the owner of every partition was notified.
        moved: Partitions that went to another member.
        longest: Longest time between two messages of a partition that stayed with its member, in seconds.
    """

    seconds: float
    moved: int
    longest: float


@measure("qdo-rebalance", "1,000 partitions over 10 members when an eleventh joins and leaves, on one ZooKeeper server")
def measure_rebalance_on_one_server(bench: Bench) -> Report:
    """Each member is a process that polls continuously; commits go on as well."""
    return measure_rebalances(bench, 1)


@measure("qdo-rebalance-three", "The same on three ZooKeeper servers")
def measure_rebalance_on_three_servers(bench: Bench) -> Report:
    """All servers are on one machine, so one disk syncs every write three times."""
    return measure_rebalances(bench, 3)


def measure_rebalances(bench: Bench, servers: int) -> Report:
    rounds = bench.count(7, 1)
    joins, leaves, quiet = [], [], []
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(keepers.zookeeper(bench, servers)).connect_string
        url = stack.enter_context(serve_queues(bench, rounds))
        members = [stack.enter_context(run_member(url, f"zookeeper://{hosts}/bench")) for _ in range(MEMBERS + 1)]
        *others, last = members
        for m in others:
            m.do("join")
        settle(others)
        bench.print_progress(f"{MEMBERS} members own {PARTITIONS} partitions")
        for turn in range(rounds):
            quiet.append(measure_undisturbed(others))
            joins.append(measure_change("join", last, others, members))
            leaves.append(measure_change("leave", last, others, others))
            bench.print_progress(f"round {turn + 1} of {rounds}")
    return make_report(joins, leaves, quiet)


def make_report(joins: Sequence[Change], leaves: Sequence[Change], quiet: Sequence[float]) -> Report:
    """Reports all times in milliseconds. The verdicts are on pauses: longest waits beyond the poll interval."""
    moved = f"{statistics.median(change.moved for change in joins):.0f}"
    times = {
        f"one joins: until all is owned, {moved} partitions moved": [change.seconds for change in joins],
        "one leaves: until all is owned again": [change.seconds for change in leaves],
        "longest wait of a partition that stays, one joins": [change.longest for change in joins],
        "longest wait of a partition that stays, one leaves": [change.longest for change in leaves],
        "longest wait of a partition, nothing changes": quiet,
    }
    rows = [Row(name, [1000 * value for value in samples], "ms") for name, samples in times.items()]
    pauses = [(change.longest - POLL_INTERVAL) / POLL_INTERVAL for change in joins]
    leave_pauses = [(change.longest - POLL_INTERVAL) / POLL_INTERVAL for change in leaves]
    verdicts = [
        Verdict("pause of a partition that stays, one joins", pauses, "poll intervals", goal=1, better="lower"),
        Verdict("pause of a partition that stays, one leaves", leave_pauses, "poll intervals", goal=1, better="lower"),
    ]
    polls = (
        f"Members poll so that each partition has a turn every {1000 * POLL_INTERVAL:.0f} ms; a longer wait is a pause."
    )
    options = (
        f"Default settings otherwise; commits every {member.COMMIT_SECONDS:.0f} s and before a partition is given up."
    )
    return Report("", "", rows, verdicts, [polls, options])


@contextlib.contextmanager
def serve_queues(bench: Bench, rounds: int) -> Iterator[str]:
    """Serves queues with messages for the whole measure; yields the URL of the application."""
    directory = bench.new_directory("queuey")
    store = service.prepare(directory, ())
    texts = traffic.bodies(1000)
    per_partition = round((START_SECONDS + rounds * ROUND_SECONDS) / POLL_INTERVAL)
    for name in QUEUES:
        queue = bridge.run(
            store.catalogue.create_queue(service.APPLICATION, name, QueueSpec(partitions=PARTITIONS_PER_QUEUE))
        )[0]
        for turn in range(0, per_partition, MESSAGES_PER_APPEND):
            bodies = [texts[n] for n in range(min(MESSAGES_PER_APPEND, per_partition - turn))]
            append_to_all_partitions(store, queue, bodies)
        append_to_all_partitions(store, queue, [member.LAST_BODY])
    store.close()
    with service.serve(directory) as server:
        bench.print_progress(f"{per_partition * PARTITIONS:,} messages")
        yield f"http://127.0.0.1:{server.port}/v1/{service.APPLICATION}"


def append_to_all_partitions(store: Store, queue: Queue, bodies: Sequence[str]) -> None:
    """Appends a message with each body to each partition."""
    messages = [
        NewMessage(text, number, service.THREE_DAYS) for text in bodies for number in range(1, PARTITIONS_PER_QUEUE + 1)
    ]
    bridge.run(store.messages.append(queue, messages))


@contextlib.contextmanager
def run_member(url: str, place: str, tree: Path = ROOT) -> Iterator[Member]:
    """Starts a member with the code of ``tree``; members of one tree and place form a group. It has not joined yet."""
    with run_python(["-m", f"{bench_package(tree)}.member", url, place, tree.name, *QUEUES], tree) as started:
        started.do("mark")
        yield started


@contextlib.contextmanager
def run_python(arguments: Sequence[str], tree: Path) -> Iterator[Member]:
    """Starts a Python process with the code of ``tree``; it answers each line of its input with one line."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tree,
        env=inherited_environment() | {"PYTHONPATH": str(tree)},
    )
    try:
        yield Member(child)
    finally:
        child.terminate()
        child.communicate(timeout=20)


def query_states(members: Sequence[Member]) -> list[MemberState]:
    for m in members:
        m.begin("state")
    return [msgspec.json.decode(m.end(), type=MemberState) for m in members]


def settle(members: Sequence[Member]) -> list[MemberState]:
    """Waits until the members own all partitions in equal shares; returns their states.

    Raises:
        Void: The members did not reach that in time.
    """
    deadline = time.monotonic() + CHANGE_TIMEOUT
    while time.monotonic() < deadline:
        states = query_states(members)
        shares = [len(state.owned) for state in states]
        if sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1:
            return states
        time.sleep(QUERY_INTERVAL)
    raise Void(f"{CHANGE_TIMEOUT:.0f} s were not enough to share out {PARTITIONS} partitions: {shares}")


def measure_undisturbed(members: Sequence[Member]) -> float:
    """Returns the longest time between two messages of a partition without a rebalance.

    Raises:
        Void: The members have hardly any messages left.
    """
    time.sleep(QUIET_SECONDS)
    for m in members:
        m.do("mark")
    time.sleep(QUIET_SECONDS)
    states = query_states(members)
    if sum(len(state.waits) for state in states) < PARTITIONS / 2:
        raise Void("the members have no messages left")
    return longest_wait(states)


def longest_wait(states: Sequence[MemberState]) -> float:
    """Returns the longest time between two messages of a partition that its member owned all the time.

    Raises:
        Void: No partition received two messages.
    """
    if not (waits := [wait for state in states for wait in state.waits.values()]):
        raise Void("no partition stayed with a member that was given two of its messages")
    return max(waits)


def measure_change(command: str, who: Member, others: Sequence[Member], after: Sequence[Member]) -> Change:
    """Lets a member join or leave, and measures the rebalance.

    Args:
        command: ``join`` or ``leave``.
        who: The member that joins or leaves.
        others: The members that stay.
        after: The members that own the partitions in the end.
    """
    before = {name for state in query_states(others) for name in state.owned}
    for m in others:
        m.do("mark")
    began = who.do(command)
    time.sleep(CHANGE_SECONDS)  # queries would disturb the measurement
    states = settle(after)
    stayed = {name for state in states[: len(others)] for name in state.waits}
    moved = len(before) - len(stayed) if command == "join" else PARTITIONS - len(before)
    return Change(max(state.changed for state in states) - began, moved, longest_wait(states[: len(others)]))
