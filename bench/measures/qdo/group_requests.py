"""Counts a group's requests to its coordination service, on a tree in memory and in simulated time."""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from bench.harness import Bench, Void, measure
from bench.results import Report, Row, Verdict
from qdo.consumer.partition_listener import PartitionListener
from qdo.consumer.rebalance.group_member import GroupMember
from qdo.consumer.rebalance.session_events import SessionOptions
from qdo.coordination import Coordinator, Visibility
from qdo.coordination.paths import GroupPaths
from qdo.coordination.tree import Applied, Change, NodeData, Outcome
from qdo.partitions import Queue, Subscription
from tests.sim.groups.tree import Connection, LoopHost, Tree, TreeLink, make_loop_tree

LEADER = GroupPaths("", "group").leader
SESSION_TIMEOUT = 10.0
ROUND_TRIP_SECONDS = 0.002
"""Mean duration of a request, in seconds."""
PAUSE_SECONDS = 10.0
"""Seconds to wait after each step; each step takes much less."""
GRACE_SECONDS = 60.0
"""Seconds for which an absent named member keeps its partitions."""
MAX_LINEAR_GROWTH = 2.2
"""Max growth of a step when members and queues double: a step that costs the square of members grows fourfold."""
MAX_RESTARTS = 20
"""Max members that a rolling restart restarts."""
RESTART, NAMED_RESTART = "rolling restart, one member", "rolling restart, one member with a name and a grace time"


class SkippingSelector(selectors.SelectSelector):
    """Advances a loop's time at once whenever the loop is idle.

    Attributes:
        now: Time of the loop, in seconds.
    """

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


Steps = dict[str, Counter[str]]


def run_skipping(counted: Coroutine[Any, Any, Steps]) -> Steps:
    """Runs a coroutine on a loop whose time skips all waits."""
    selector = SkippingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(counted)


class CountedLink(TreeLink):
    """A session that counts its requests.

    Args:
        tree: The tree.
        counted: Receives the counts: reads (one for each path), writes, refused writes, bytes of paths and data sent
            and received, and fired watches.
        rng: Draws the duration of each request.
    """

    def __init__(self, tree: Tree, counted: Counter[str], rng: random.Random) -> None:
        super().__init__(tree, LoopHost(), SESSION_TIMEOUT)
        self._counted = counted
        self._rng = rng

    def tell(self, path: str) -> None:
        self._counted["watches fired"] += 1
        self._counted["received"] += len(path)
        super().tell(path)

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        requested = list(paths)
        nodes = await super().read(requested, watch=watch)
        self._count("reads", requested, sum(len(node.data) for node in nodes if node is not None))
        return nodes

    async def stat(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        requested = list(paths)
        self._count("reads", requested, 0)
        return await super().stat(requested, watch=watch)

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        requested = list(paths)
        children = await super().children(requested, watch=watch)
        self._count("reads", requested, sum(len(name) for names in children for name in names or ()))
        return children

    async def apply(self, changes: Iterable[Change]) -> list[Outcome]:
        requested = list(changes)
        outcomes = await super().apply(requested)
        self._counted["writes"] += len(requested)
        self._counted["refused"] += sum(not isinstance(outcome, Applied) for outcome in outcomes)
        self._counted["sent"] += sum(len(node.path) + len(node.data) for change in requested for node in change)
        return outcomes

    def _count(self, kind: str, paths: Collection[str], received: int) -> None:
        self._counted[kind] += len(paths)
        self._counted["sent"] += sum(map(len, paths))
        self._counted["received"] += received

    async def _ask(self, one: Callable[[Connection, Any], Any], asked: Iterable[Any]) -> list[Any]:
        await asyncio.sleep(self._rng.expovariate(1 / ROUND_TRIP_SECONDS))
        return await super()._ask(one, asked)


class KnownQueues:
    """The service's queues, all of which every member sees."""

    sight = Visibility(("*",))

    def __init__(self, queues: Mapping[Queue, int]) -> None:
        self.partition_counts = queues
        first = next(iter(queues))
        self.own_subscription = Subscription(frozenset(), ("*",), first.service, first.application)

    def look_up(self, wanted: Collection[Subscription], held: AbstractSet[Queue]) -> None:
        """All queues are known already."""

    def follow(self, leader: Visibility | None, held: AbstractSet[Queue]) -> None:
        """The leader sees all queues."""

    def warn_of_unseen_queues(self, unseen: AbstractSet[Queue]) -> None:
        """Every queue is seen."""


class IdleOwner(PartitionListener):
    def refused(self, error: Exception) -> None:
        raise Void("the tree allows everything") from error


class CountedGroup:
    """A group whose members run in this process, each with its own session.

    Args:
        queues: Number of queues, of one partition each.
        named: Whether members keep their names and have a grace time.

    Attributes:
        members: Members by name.
        counted: Requests to the tree since the last call of :meth:`step`.
    """

    def __init__(self, queues: int, *, named: bool = False) -> None:
        self.members: dict[str, GroupMember] = {}
        self.counted: Counter[str] = Counter()
        self._tree = make_loop_tree()
        self._rng = random.Random(7)
        self._queues = KnownQueues({Queue("host:5000", "app", f"crashes-{at:05}"): 1 for at in range(queues)})
        self._named = named
        self._options = SessionOptions(
            grace=GRACE_SECONDS if named else 0.0,
            recheck=1e9,
            now=asyncio.get_running_loop().time,
            draw=self._rng.random,
        )

    @property
    def leader(self) -> str:
        return self._tree.nodes[LEADER].data.decode()

    async def join(self, name: str) -> None:
        coordinator = Coordinator("group", self._link, SESSION_TIMEOUT, clock=self._options.now)
        member = GroupMember(
            coordinator, name, IdleOwner(), queues=self._queues, static=self._named, options=self._options
        )
        self.members[name] = member
        await member.start()

    def _link(self, _max_blocked_seconds: float) -> CountedLink:
        return CountedLink(self._tree, self.counted, self._rng)

    async def leave(self, name: str) -> None:
        await self.members.pop(name).stop()

    async def step(self, *calls: Awaitable[None]) -> Counter[str]:
        """Awaits the calls concurrently; returns the requests to the tree until :data:`PAUSE_SECONDS` after their end.

        Raises:
            Void: The partitions are not evenly assigned afterwards.
        """
        self.counted.clear()
        await asyncio.gather(*calls)
        await asyncio.sleep(PAUSE_SECONDS)
        counted = self.counted.copy()
        sizes = [len(member.table.held) for member in self.members.values()]
        count = len(self._queues.partition_counts)
        if sum(sizes) != count or max(sizes) - min(sizes) > 1:
            raise Void(f"{sum(sizes)} of {count} partitions are owned, {min(sizes)} to {max(sizes)}")
        return counted

    async def restart(self, count: int) -> Counter[str]:
        """Restarts random members one by one, at most ``count``; returns the mean number of requests per member.

        Unless members keep their names, each returns under a new one. Changes of the leader are counted, too.
        """
        total: Counter[str] = Counter()
        names = self._rng.sample(sorted(self.members), min(count, len(self.members)))
        for name in names:
            leads = name == self.leader
            self.counted.clear()
            await self.leave(name)
            await asyncio.sleep(PAUSE_SECONDS)
            total += self.counted + Counter({"leader changes": int(leads)})
            total += await self.step(self.join(name if self._named else f"{name}+"))
        return Counter({kind: round(count / len(names), 2) for kind, count in total.items()})


async def count_steps(members: int, queues: int) -> Steps:
    group = CountedGroup(queues)
    names = [f"worker-{number:04}.example.org-{number:06x}" for number in range(members)]
    steps = {"start of all members": await group.step(*map(group.join, names))}
    steps["a member joins"] = await group.step(group.join("worker-0500-and-a-half"))
    follower = next(name for name in names if name != group.leader)
    steps["a member leaves"] = await group.step(group.leave(follower))
    steps["the leader leaves"] = await group.step(group.leave(group.leader))
    steps[RESTART] = await group.restart(MAX_RESTARTS)
    await asyncio.gather(*map(group.leave, list(group.members)))
    return steps


async def count_named_restart(members: int, queues: int) -> Steps:
    group = CountedGroup(queues, named=True)
    await group.step(*(group.join(f"worker-{number:04}") for number in range(members)))
    steps = {NAMED_RESTART: await group.restart(MAX_RESTARTS)}
    await asyncio.gather(*map(group.leave, list(group.members)))
    return steps


def count_all_steps(members: int, queues: int) -> Steps:
    """Returns the requests of each step; for rolling restarts, the mean per member."""
    return run_skipping(count_steps(members, queues)) | run_skipping(count_named_restart(members, queues))


def growth(small: Counter[str], large: Counter[str]) -> dict[str, float]:
    return {
        "requests": (large["reads"] + large["writes"]) / (small["reads"] + small["writes"]),
        "bytes": (large["sent"] + large["received"]) / (small["sent"] + small["received"]),
    }


@measure("qdo-requests", "Requests of a group of 1,000 members on 10,000 queues to its coordination service")
def measure_group_requests(bench: Bench) -> Report:
    members, queues = bench.count(1000, 20), bench.count(10_000, 200)
    large = count_all_steps(members, queues)
    bench.print_progress(f"{members} members counted")
    small = count_all_steps(members // 2, queues // 2)
    rows = [
        Row(name, [counted["reads"] + counted["writes"]], "requests", {kind: counted[kind] for kind in sorted(counted)})
        for name, counted in large.items()
    ]
    verdicts = [
        Verdict(f"{name}: {what}, twice the members and queues", [times], goal=MAX_LINEAR_GROWTH, better="lower")
        for name in large
        for what, times in growth(small[name], large[name]).items()
    ]
    notes = [
        f"{members:,} members, {queues:,} queues of one partition; sent and received: bytes of paths and data.",
        "Nothing is timed: requests are counted at a tree in memory, in simulated time.",
    ]
    return Report("qdo-requests", "", rows, verdicts, notes)
