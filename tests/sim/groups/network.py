"""The network between programs and the processes of the service: requests that are late, lost, or arrive twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.sim.groups.loop import MemberLoop
from tests.sim.world import Process, World

if TYPE_CHECKING:
    from tests.sim.groups.served.web import Web

Begin = Callable[["Web", Any], object]
"""Begins a request at a process. May return a function that ends it when its client has left."""
PATIENCE = 1.5
"""Max seconds to wait for an answer."""


class NoAnswerError(Exception):
    pass


@dataclass(frozen=True)
class Habits:
    """How a member behaves.

    Attributes:
        pace: Mean seconds between messages.
        hurry: Mean seconds to handle a message.
        deaf: It does not give back what others wait for.
        generous: Probability that it gives a partition back unasked after a message.
        repeats: Probability that a request arrives twice, the second time late.
        loses: Probability that a request or an answer is lost.
        late: Probability that a request or an answer takes seconds, at most 12.
        patience: Seconds that it waits for the answer to a heartbeat, on top of the heartbeat's own wait.
    """

    pace: float = 0.4
    hurry: float = 0.1
    deaf: bool = False
    generous: float = 0.0
    repeats: float = 0.0
    loses: float = 0.0
    late: float = 0.0
    patience: float = PATIENCE


class Caller(Process):
    """A machine that sends requests to random processes of the service.

    Args:
        world: The simulated world.
        offset: Seconds by which its clock is ahead.
        webs: The processes of the service.
        habits: How it behaves.

    Attributes:
        cut: Until then nothing that it sends or is sent arrives.
    """

    loop: MemberLoop

    def __init__(self, world: World, offset: float, webs: Sequence[Web], habits: Habits) -> None:
        super().__init__(world, offset)
        self.webs = webs
        self.habits = habits
        self.cut = 0.0

    async def ask(self, begin: Begin, within: float) -> Any:  # noqa: ANN401 - any
        """Sends a request to a random process, and returns the answer or raises its error.

        Raises NoAnswerError after ``within`` seconds.
        """
        request = Request(self, begin)
        self.soon(within, request.give_up, self.life)
        try:
            return await request.answer
        except (NoAnswerError, asyncio.CancelledError):
            request.leave()
            raise

    def is_lost(self) -> bool:
        """Returns whether a message to or from it is lost: while it is cut off, or by chance."""
        loses = self.habits.loses
        return self.world.now < self.cut or (loses > 0 and self.world.rng.random() < loses)

    def delay(self) -> float:
        """Returns a transport time: mostly milliseconds, up to 12 s for a member with bad habits."""
        rng = self.world.rng
        if self.habits.late and rng.random() < self.habits.late:
            return rng.random() ** 2 * 12
        return self.world.random_time(0.003)


class Request:
    """A request under way.

    Args:
        member: The sender.
        begin: Begins it where it arrives.

    Attributes:
        answer: The answer, or the error.
    """

    def __init__(self, member: Caller, begin: Begin) -> None:
        rng, webs = member.world.rng, member.webs
        self._member = member
        self._life = member.life
        self._begin = begin
        self._web = rng.choice(webs)
        self._leave: object = None
        self.answer: asyncio.Future[Any] = member.loop.create_future()
        if not member.is_lost():
            self._web.process.soon(member.delay(), self._arrive)
        repeats = member.habits.repeats
        if repeats and rng.random() < repeats:
            other = rng.choice(webs)
            other.process.soon(rng.random() * 12, partial(self._repeat, other))

    def _arrive(self) -> None:
        self._leave = self._begin(self._web, self._take_answer)

    def _repeat(self, web: Web) -> None:
        self._begin(web, lambda _value, _error: None)

    def _take_answer(self, value: object, error: Exception | None) -> None:
        member = self._member
        if not member.is_lost():
            member.soon(member.delay(), partial(self._end, value, error), self._life)

    def _end(self, value: object, error: Exception | None) -> None:
        """Sets the answer, unless it is set or the member's life has ended."""
        if self._member.life != self._life or self.answer.done():
            return
        if error is None:
            self.answer.set_result(value)
        else:
            self.answer.set_exception(error)

    def give_up(self) -> None:
        """Fails the answer with NoAnswerError, unless it has come."""
        if not self.answer.done():
            self.answer.set_exception(NoAnswerError())

    def leave(self) -> None:
        """Ends the request where it arrived, after a delay; does nothing if it cannot be ended."""
        if callable(self._leave):
            self._web.process.soon(self._member.delay(), self._leave)
