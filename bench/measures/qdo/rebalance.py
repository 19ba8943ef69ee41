"""How long a group takes to share out its partitions anew, and whether the others' work stops meanwhile."""

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
from bench.member import INTERVAL, Told
from bench.results import Report, Row, Verdict
from bench.started import keepers, service
from bench.started.processes import ROOT, inherited, package
from queuey.messages import NewMessage, Queue, QueueSpec
from queuey.storage import Store, bridge

QUEUES = [f"q{number}" for number in range(1, 6)]
PER_QUEUE = 200
PARTITIONS = PER_QUEUE * len(QUEUES)
MEMBERS = 10
QUIET_SECONDS = 0.7
"""For which the group works undisturbed before each change, and for which that is measured."""
CHANGE_SECONDS = 1.5
"""For which it is left alone when one comes or goes."""
ROUND_SECONDS = 7
START_SECONDS = 20
"""For both there are messages enough."""
AT_ONCE = 5
"""Messages of each partition that are stored in one go."""
PATIENCE = 60.0
LOOK_SECONDS = 0.02


class Member:
    """A member in a process of its own."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def begin(self, command: str) -> None:
        """Tells it what to do; :meth:`end` follows."""
        assert self._child.stdin is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()

    def end(self) -> bytes:
        """Returns its answer.

        Raises:
            Void: It has ended.
        """
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise Void(f"a member ended with {self._child.wait(10)}")
        return line.encode()

    def do(self, command: str) -> float:
        """Has it join or leave, or forget; returns the instant before."""
        self.begin(command)
        return msgspec.json.decode(self.end(), type=float | None) or 0.0


@dataclass(frozen=True)
class Change:
    """One rebalance.

    Attributes:
        seconds: From the call to join or leave until every partition was owned and its owner had been told.
        moved: Partitions that went to another member.
        longest: Seconds between two messages of a partition that stayed where it was, at most.
    """

    seconds: float
    moved: int
    longest: float


@measure("qdo-rebalance", "1,000 partitions over 10 members when an eleventh joins and leaves, on one ZooKeeper server")
def rebalance(bench: Bench) -> Report:
    """Every member is a process and polls all the time; commits go on as well."""
    return measured(bench, 1)


@measure("qdo-rebalance-three", "The same on three ZooKeeper servers")
def rebalance_three(bench: Bench) -> Report:
    """All on one machine, so every write is synchronised three times on one disk."""
    return measured(bench, 3)


def measured(bench: Bench, servers: int) -> Report:
    """Lets one come and go, several times."""
    rounds = bench.size(7, 1)
    joins, leaves, quiet = [], [], []
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(keepers.zookeeper(bench, servers)).connect_string
        url = stack.enter_context(served(bench, rounds))
        members = [stack.enter_context(process(url, f"zookeeper://{hosts}/bench")) for _ in range(MEMBERS + 1)]
        *others, last = members
        for one in others:
            one.do("join")
        settle(others)
        bench.say(f"{MEMBERS} members own {PARTITIONS} partitions")
        for turn in range(rounds):
            quiet.append(undisturbed(others))
            joins.append(changed("join", last, others, members))
            leaves.append(changed("leave", last, others, others))
            bench.say(f"round {turn + 1} of {rounds}")
    return report(joins, leaves, quiet)


def report(joins: Sequence[Change], leaves: Sequence[Change], quiet: Sequence[float]) -> Report:
    """Sums up."""
    moved = f"{statistics.median(change.moved for change in joins):.0f}"
    times = {
        f"one joins: until all is owned, {moved} partitions moved": [each.seconds for each in joins],
        "one leaves: until all is owned again": [each.seconds for each in leaves],
        "longest wait of a partition that stays, one joins": [each.longest for each in joins],
        "longest wait of a partition that stays, one leaves": [each.longest for each in leaves],
        "longest wait of a partition, nothing changes": quiet,
    }
    rows = [Row(name, [1000 * value for value in samples], "ms") for name, samples in times.items()]
    late = [(each.longest - INTERVAL) / INTERVAL for each in joins]
    late_leaving = [(each.longest - INTERVAL) / INTERVAL for each in leaves]
    verdicts = [
        Verdict("pause of a partition that stays, one joins", late, "poll intervals", goal=1, better="lower"),
        Verdict("pause of a partition that stays, one leaves", late_leaving, "poll intervals", goal=1, better="lower"),
    ]
    beyond = f"Members poll so that each partition has a turn every {1000 * INTERVAL:.0f} ms; a longer wait is a pause."
    options = (
        f"Default settings otherwise; commits every {member.COMMIT_SECONDS:.0f} s and before a partition is given up."
    )
    return Report("", "", rows, verdicts, [beyond, options])


@contextlib.contextmanager
def served(bench: Bench, rounds: int) -> Iterator[str]:
    """Serves queues with messages for the whole measure; returns the application's address."""
    directory = bench.fresh("queuey")
    store = service.prepare(directory, ())
    texts = traffic.bodies(1000)
    each = round((START_SECONDS + rounds * ROUND_SECONDS) / INTERVAL)
    for name in QUEUES:
        queue = bridge.run(store.catalogue.create_queue(service.APPLICATION, name, QueueSpec(partitions=PER_QUEUE)))[0]
        for turn in range(0, each, AT_ONCE):
            bodies = [texts[n] for n in range(min(AT_ONCE, each - turn))]
            spread(store, queue, bodies)
        spread(store, queue, [member.LAST])
    store.close()
    with service.serve(directory) as server:
        bench.say(f"{each * PARTITIONS:,} messages")
        yield f"http://127.0.0.1:{server.port}/v1/{service.APPLICATION}"


def spread(store: Store, queue: Queue, bodies: Sequence[str]) -> None:
    """Stores some messages in each partition of a queue."""
    messages = [NewMessage(text, number, service.THREE_DAYS) for text in bodies for number in range(1, PER_QUEUE + 1)]
    bridge.run(store.messages.append(queue, messages))


@contextlib.contextmanager
def process(url: str, place: str, tree: Path = ROOT) -> Iterator[Member]:
    """Starts a member of a tree of the project that has not joined; those of one tree and place are a group."""
    with answering(["-m", f"{package(tree)}.member", url, place, tree.name, *QUEUES], tree) as one:
        one.do("mark")
        yield one


@contextlib.contextmanager
def answering(arguments: Sequence[str], tree: Path) -> Iterator[Member]:
    """Starts a Python process, with the code of a tree, that answers each line of its input with one."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tree,
        env=inherited() | {"PYTHONPATH": str(tree)},
    )
    try:
        yield Member(child)
    finally:
        child.terminate()
        child.communicate(timeout=20)


def told(members: Sequence[Member]) -> list[Told]:
    """Asks all at once."""
    for one in members:
        one.begin("tell")
    return [msgspec.json.decode(one.end(), type=Told) for one in members]


def settle(members: Sequence[Member]) -> list[Told]:
    """Waits until the members own everything in equal shares; returns what they have.

    Raises:
        Void: They do not.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        found = told(members)
        shares = [len(each.owned) for each in found]
        if sum(shares) == PARTITIONS and max(shares) - min(shares) <= 1:
            return found
        time.sleep(LOOK_SECONDS)
    raise Void(f"{PATIENCE:.0f} s were not enough to share out {PARTITIONS} partitions: {shares}")


def undisturbed(members: Sequence[Member]) -> float:
    """Returns the longest time between two messages of a partition while nothing changes.

    Raises:
        Void: There are hardly any messages any more.
    """
    time.sleep(QUIET_SECONDS)
    for one in members:
        one.do("mark")
    time.sleep(QUIET_SECONDS)
    found = told(members)
    if sum(len(each.waits) for each in found) < PARTITIONS / 2:
        raise Void("the members have nothing to hand out any more")
    return longest(found)


def longest(found: Sequence[Told]) -> float:
    """Returns the longest time between two messages of a partition that was a member's all the time.

    Raises:
        Void: There was none.
    """
    if not (waits := [wait for each in found for wait in each.waits.values()]):
        raise Void("no partition stayed with a member that was given two of its messages")
    return max(waits)


def changed(command: str, who: Member, others: Sequence[Member], after: Sequence[Member]) -> Change:
    """Has a member join or leave and measures what follows.

    Args:
        command: ``join`` or ``leave``.
        who: The member.
        others: Those that stay.
        after: Those who share the partitions in the end.
    """
    before = {name for each in told(others) for name in each.owned}
    for one in others:
        one.do("mark")
    begun = who.do(command)
    time.sleep(CHANGE_SECONDS)  # nobody is asked meanwhile: that would cost what is to be measured
    found = settle(after)
    stayed = {name for each in found[: len(others)] for name in each.waits}
    moved = len(before) - len(stayed) if command == "join" else PARTITIONS - len(before)
    return Change(max(each.changed for each in found) - begun, moved, longest(found[: len(others)]))
