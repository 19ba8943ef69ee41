"""Histories of a process's clock beside slow, silent and wrong nodes, played against :class:`ClockCheck`.

A seed makes a :class:`History`, and :func:`play_history` plays it in true time. The machine of the process may be
suspended at any moment: its time since boot and its wall clock stop, while nodes and network continue. Answers that
arrive meanwhile are processed when it resumes. At least half of the nodes are honest: their clocks are right to
``MAX_HONEST_ERROR``.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from queuey.ids import EPOCH_TICKS, TICKS_PER_SECOND
from queuey.storage.cassandra.clocks.clock import Clock
from queuey.storage.cassandra.clocks.clock_check import ClockCheck, Interval, measure_difference

S = 1.0
"""Max clock difference of the store, in seconds."""
MAX_HONEST_ERROR = 0.001
"""Max seconds by which an honest node's clock is off."""
TOLERANCE = MAX_HONEST_ERROR + 0.006
"""Seconds that the clock drift during an acknowledgement may add to S/2."""
START, BOOT = 1_750_000_000.0, 1000.0
"""Seconds since 1970, and since boot, at which a history begins."""
QUICK = 0.0005
"""Seconds of each way of a quick request."""
ROUND_EVERY = 0.25
"""Seconds between two rounds."""
PATIENCE = 0.75
"""Timeout of a node in a light check, in seconds."""
TIMEOUT, REST = 1.0, 0.1
"""Timeout of a round, and timeout of waiting for another node when most have answered, in seconds."""
LATEST = 1.0
"""Seconds after which no further check begins for an acknowledgement."""


@dataclass(frozen=True)
class Step:
    """A change of a clock at a true time, in seconds."""

    at: float
    by: float


@dataclass(frozen=True)
class NetworkState:
    """The state of the network from a true time on.

    Attributes:
        there, back: Max time of each way by node, in seconds.
        lost: Share of requests that are never answered.
    """

    at: float
    there: tuple[float, ...]
    back: tuple[float, ...]
    lost: float


@dataclass(frozen=True)
class History:
    """The events of a history.

    Attributes:
        seed: Seed for the durations of single ways.
        ahead: Seconds by which each node's clock is ahead of the true time.
        wrong: The node whose clock is set (``sets``), or -1.
        shared: The node on the machine of the process, or -1.
        wall: Seconds by which the wall clock is ahead at first.
        drift: Seconds that the time since boot gains each second.
        standstills: When the machine is suspended, and for how long.
        walls: When the wall clock is set.
        weather: States of the network, in the order of time.
        writes: When ids are made, and how long the write takes.
        end: The last true time.
    """

    seed: int
    ahead: tuple[float, ...]
    wrong: int
    shared: int
    wall: float
    drift: float
    standstills: tuple[Step, ...]
    walls: tuple[Step, ...]
    sets: tuple[Step, ...]
    weather: tuple[NetworkState, ...]
    writes: tuple[Step, ...]
    end: float


def draw_history(seed: int) -> History:
    rng = random.Random(seed)
    count = rng.choice((1, 2, 3, 3, 4, 5, 5))
    end = rng.uniform(0.8, 2.4)
    odd = rng.choice(("none", "wrong", "shared")) if count > 2 else "none"
    standstills: list[Step] = []
    time = rng.uniform(0.0, end)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        standstills.append(Step(time, rng.uniform(0.05, rng.choice((0.6, 0.9, 1.4)))))
        time += standstills[-1].by + rng.uniform(0.0, 1.0)
    wall = rng.choice((0.0, rng.uniform(-0.49, 0.49), -0.45))
    near = rng.choice((rng.uniform(0.0, end), *(one.at + rng.uniform(-0.9, 0.1) for one in standstills)))
    walls = [Step(near, rng.choice((-wall, 0.09, rng.uniform(-0.6, 0.6))))] if rng.random() < 0.5 else []
    walls += [  # The host sets the clock right soon after a suspend, or nearly.
        Step(one.at + one.by + rng.choice((0.0, rng.uniform(0.0, 1.0))), one.by * rng.choice((1.0, rng.random())))
        for one in standstills
        if rng.random() < 0.6
    ]
    return History(
        seed,
        ahead=tuple(rng.uniform(-MAX_HONEST_ERROR, MAX_HONEST_ERROR) for _ in range(count)),
        wrong=rng.randrange(count) if odd == "wrong" else -1,
        shared=rng.randrange(count) if odd == "shared" else -1,
        wall=wall,
        drift=rng.uniform(-0.0009, 0.0009),
        standstills=tuple(standstills),
        walls=tuple(sorted(walls, key=lambda one: one.at)),
        sets=tuple(Step(rng.uniform(0.0, end), rng.uniform(-1.0, 1.0)) for _ in range(3)) if odd == "wrong" else (),
        weather=tuple(_draw_state(rng, at, count) for at in _change_times(rng, standstills, end)),
        writes=tuple(
            Step(max(0.1, near + rng.uniform(-0.9, 0.8)), rng.choice((0.002, rng.uniform(0.0, 0.9))))
            for near in [*(one.at for one in standstills), rng.uniform(0.4, end)]
            for _ in range(4)
        ),
        end=end + 1.6,
    )


def _change_times(rng: random.Random, standstills: Sequence[Step], end: float) -> list[float]:
    at_any = [rng.uniform(0.0, end) for _ in range(rng.randint(0, 2))]
    with_standstills = [one.at + rng.uniform(-0.3, 0.3) + one.by * rng.choice((0, 1)) for one in standstills]
    return [0.0, *sorted([*at_any, *with_standstills])]


def _draw_state(rng: random.Random, at: float, count: int) -> NetworkState:
    there, back = [QUICK] * count, [QUICK] * count
    kind = rng.choice(("calm", "there", "back", "both"))
    if kind != "calm":
        share = rng.choice((0.5, 1.0))
        for node in range(count):
            if rng.random() < share:
                there[node] = rng.uniform(0.0, 0.9) if kind in {"there", "both"} else QUICK
                back[node] = rng.uniform(0.0, 1.6) if kind in {"back", "both"} else QUICK
    return NetworkState(at, tuple(there), tuple(back), rng.choice((0.0, 0.0, 0.2)))


@dataclass
class Outcome:
    """The result of a history.

    Attributes:
        late: Seconds beyond S/2 by which the clock was behind at the answer of each acknowledged write.
        early: Seconds beyond S/2 by which the clock was ahead at each choice of a horizon.
        acknowledged, refused: Numbers of writes.
        served, stopped: Numbers of moments at which the clock was sound, and at which it was not.
        refusals: How often the clock was found off.
    """

    late: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    acknowledged: int = 0
    refused: int = 0
    served: int = 0
    stopped: int = 0
    refusals: int = 0

    @property
    def violations(self) -> list[float]:
        return [one for one in [*self.late, *self.early] if one > TOLERANCE]


class World:
    def __init__(self, history: History) -> None:
        self.history = history
        self._rng = random.Random(history.seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.outcome = Outcome()
        self.boottime = self.wall = 0.0
        """The clocks of the machine, in seconds."""
        self._move(0.0)
        self.clock = Clock(boottime=lambda: round(self.boottime * 1e9), wall=lambda: round(self.wall * 1e9))
        self.check = ClockCheck(self.clock, lambda: S)
        self._asking = False
        self._waiting: list[Callable[[], None]] = []

    # Time

    def _move(self, now: float) -> None:
        """Advances the true time: the machine's clocks follow unless it is suspended; the wall clock may be set."""
        missed = sum([min(max(0.0, now - one.at), one.by) for one in self.history.standstills])
        set_by = sum([one.by for one in self.history.walls if one.at <= now])
        self.now, self.boottime = now, BOOT + (now - missed) * (1.0 + self.history.drift)
        self.wall = START + self.history.wall + set_by + self.boottime - BOOT

    def node(self, number: int) -> float:
        ahead = self.history.ahead[number]
        if number == self.history.shared:
            return self.wall - self.history.wall + ahead
        if number == self.history.wrong:
            ahead += sum(one.by for one in self.history.sets if one.at <= self.now)
        return START + self.now + ahead

    @property
    def ahead(self) -> float:
        return self.seconds_ahead(self.clock.now())

    def seconds_ahead(self, ticks: int) -> float:
        return (ticks - EPOCH_TICKS) / TICKS_PER_SECOND - START - self.now

    def at(self, time: float, do: Callable[[], None]) -> None:
        """Schedules a call at a time of the history; ``time`` is not a delay."""
        heapq.heappush(self._events, (time, next(self._order), do))

    def call_when_awake(self, time: float, do: Callable[[], None]) -> None:
        """Calls something on the machine, once it is not suspended."""
        for standstill in self.history.standstills:
            if standstill.at <= time < standstill.at + standstill.by:
                time = standstill.at + standstill.by
        self.at(time, do)

    def run(self) -> None:
        """Runs all events up to the end of the history; later ones are dropped."""
        while self._events and self._events[0][0] <= self.history.end:
            time, _, do = heapq.heappop(self._events)
            self._move(time)
            do()

    # Requests

    def ask(self, number: int, done: Callable[[Interval], None]) -> None:
        """Asks a node for its time. Some requests are never answered.

        A node on the machine of the process stops with it.
        """
        weather = [one for one in self.history.weather if one.at <= self.now][-1]
        rng = self._rng
        if rng.random() < weather.lost:
            return
        sent = self.clock.raw_boottime_ns()
        arrives = self.now + QUICK / 2 + rng.choice((1.0, rng.random())) * weather.there[number]
        back = QUICK / 2 + rng.choice((1.0, rng.random())) * weather.back[number]

        def read() -> None:
            theirs = math.floor(self.node(number) * 1000) * 1_000_000
            self.call_when_awake(
                self.now + back, lambda: done(measure_difference(sent, self.clock.raw_boottime_ns(), theirs))
            )

        # A node on the same machine answers when that resumes.
        (self.call_when_awake if number == self.history.shared else self.at)(arrives, read)

    def ask_all_nodes(self, then: Callable[[], None] = lambda: None) -> None:
        """Asks all nodes, after the round that is in flight, and applies the answers.

        A round ends when all have answered, a little after most have, or after the timeout.
        """
        if self._asking:
            self._waiting.append(then)
            return
        self._asking = True
        began, answers, ended = self.clock.boottime(), dict[str, Interval](), False
        node_count = len(self.history.ahead)

        def end() -> None:
            nonlocal ended
            if not ended:
                ended, self._asking = True, False
                refusing = self.check.refusing
                self.check.apply_round(dict(answers), began, node_count)
                self.outcome.refusals += self.check.refusing and not refusing
                then()
                if self._waiting and not self._asking:
                    self.ask_all_nodes(self._waiting.pop(0))

        def done(number: int, answer: Interval) -> None:
            answers[f"node {number}"] = answer
            if len(answers) == node_count:
                end()
            elif 2 * len(answers) > node_count:
                self.call_when_awake(self.now + REST, end)

        for number in range(node_count):
            self.ask(number, partial(done, number))
        self.call_when_awake(self.now + TIMEOUT, end)

    def rounds(self) -> None:
        self.ask_all_nodes(lambda: self.call_when_awake(self.now + ROUND_EVERY, self.rounds))

    # Uses of the clock

    def write(self, takes: float) -> None:
        """Begins a write that takes this many seconds, unless the clock is unsound."""
        if not self.check.sound():
            return
        ticks, minted = self.clock.now_and_boottime()
        self.call_when_awake(self.now + takes, lambda: self.end_write(ticks, minted))

    def end_write(self, ticks: int, minted: float) -> None:
        """Ends a write: a light check, or else later rounds, and the state of the clock decide on acknowledgement."""
        arrived = self.clock.boottime()
        # A reader passes the id, at the earliest, W and U after the time that the writer's clock shows now.
        late = -self.seconds_ahead(ticks) - (arrived - minted) - S / 2

        def tell(*, good: bool) -> None:
            if good and self.check.sound() and minted > self.check.wrong_until:
                self.outcome.acknowledged += 1
                self.outcome.late.append(late)
            else:
                self.outcome.refused += 1

        self.check_lightly(partial(self.confirm, arrived, tell))

    def confirm(self, arrived: float, tell: Callable[..., None], *, good: bool) -> None:
        """Acknowledges by the light check, or by a later round; refuses if the clock is off or it is too late."""
        if good or self.check.sound(arrived):
            tell(good=True)
        elif self.check.refusing or self.clock.boottime() - arrived > LATEST:
            tell(good=False)
        else:
            self.ask_all_nodes(lambda: self.confirm(arrived, tell, good=False))

    def check_lightly(self, told: Callable[..., None]) -> None:
        """Asks two nodes, and another for each that is silent. Tells whether as many as needed agree with the clock."""
        nodes = iter(self.check.fastest)
        left, ended = max(1, self.check.witnesses), False

        def end(*, good: bool) -> None:
            nonlocal left, ended
            left -= 1
            if not ended and (left <= 0 or not good):
                ended = True
                told(good=good)

        def another() -> None:
            node = next(nodes, None)
            if node is None:
                end(good=False)
                return
            answered = False

            def done(answer: Interval) -> None:
                nonlocal answered
                if not answered:
                    answered = True
                    end(good=self.check.apply_light_answer(node, answer))

            def silent() -> None:
                nonlocal answered
                if not answered:
                    answered = True
                    self.check.exclude_slow(node)
                    another()

            self.ask(int(node.removeprefix("node ")), done)
            self.call_when_awake(self.now + PATIENCE, silent)

        for _ in range(left):
            another()

    def choose_horizon(self) -> None:
        """Chooses a horizon, as a read does, and again every 0.1 s. Counts how often the clock was not sound."""
        if self.check.sound():
            self.outcome.served += 1
            self.outcome.early.append(self.ahead - S / 2)
        else:
            self.outcome.stopped += 1
        self.call_when_awake(self.now + 0.1, self.choose_horizon)


def play_history(history: History) -> Outcome:
    world = World(history)
    world.call_when_awake(0.0, world.rounds)
    world.call_when_awake(0.05, world.choose_horizon)
    for write in history.writes:
        world.call_when_awake(write.at, partial(world.write, write.by))
    world.run()
    return world.outcome


def find_violations(seeds: Iterable[int]) -> dict[int, list[float]]:
    """Returns the seconds beyond S/2 of each violation, by seed."""
    return {seed: broken for seed in seeds if (broken := play_history(draw_history(seed)).violations)}
