"""A member of a group, as "What a client does" in the design describes it: one heartbeat, and work on what it owns."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from queuey import ids
from queuey.api.groups import Heartbeat, HeartbeatAnswer, Joined, Taken
from queuey.errors import MemberGone, NotAllowed, NotOwner, OffsetConflict, QueueyError
from queuey.groups.state import Credential, JoinRequest
from queuey.ids import LOW_MIN, Position
from queuey.messages import OffsetChange
from tests.sim.groups.loop import MemberLoop
from tests.sim.service_groups.history import Life, Place
from tests.sim.service_groups.network import Caller, Habits, NoAnswerError
from tests.sim.service_groups.stored import APPLICATION, GROUP

if TYPE_CHECKING:
    from tests.sim.service_groups.storm import Storm

Spot = tuple[str, int]
"""The name of a queue, and a partition number."""


@dataclass
class Holding:
    """A partition that a member works on.

    Attributes:
        place: The partition.
        epoch: The epoch of the ownership.
        next: Number of the next message.
        until: When it must be given back; None if no member waits for it.
        busy: A message is being handled.
    """

    place: Place
    epoch: int
    next: int
    until: float | None = None
    busy: bool = False


FIRST = 1_000_000
"""Ticks before the id of message 1."""


def position_of(number: int) -> Position:
    return FIRST + number, LOW_MIN


class Member(Caller):
    """A machine on which members live, one after another.

    Args:
        storm: The history that it is part of.
        request: The request with which it joins.
        habits: How it behaves.

    Attributes:
        stay: The present membership.
        wanted: Whether a member should live there.
    """

    def __init__(self, storm: Storm, request: JoinRequest, habits: Habits) -> None:
        super().__init__(storm.world, 0.0, storm.webs, habits)
        self.storm: Storm = storm
        self.request = request
        self.wanted = True
        self._lives = False
        self.stay: Life | None = None
        self.holds: dict[Spot, Holding] = {}
        self.draining = False
        self._given: dict[Spot, int] = {}
        """The epochs of partitions being given back."""
        self._id = ""

    def begin(self) -> None:
        """Starts a life; does nothing if one is under way."""
        if self._lives:
            return
        self._lives = True
        self.loop = MemberLoop(self)  # type: ignore[abstract]  # much of it is not needed
        self.draining = False
        self._start(self._live())

    def crash(self) -> None:
        super().crash()
        self._lives = False
        self._end_stay()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work in the member's loop. An error that ends it is recorded as a violation."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.storm.history.record_violation(f"program: ended with {error!r}")

        with self.loop.running():
            task = self.loop.create_task(work)
        task.add_done_callback(ended)
        self.threads.append(task)

    def _end_stay(self) -> None:
        """Ends the stay, and forgets all partitions without giving them back."""
        if self.stay is not None:
            self.stay.ended = True
            self.stay.holds.clear()
        self.stay = None
        self.holds.clear()
        self._given.clear()

    # The heartbeat

    async def _live(self) -> None:
        while self.wanted:  # bounded: by the history
            try:
                await self._stay()
            except (NoAnswerError, QueueyError):
                await asyncio.sleep(self.world.random_time(0.4))
            self._end_stay()

    async def _stay(self) -> None:
        """Joins, sends heartbeats until the session ends or the member is not wanted, and then leaves the group.

        A member that drains is not wanted any more once it has given everything back. The session's end is not followed
        by a request to leave.
        """
        sent, credential = self.world.now, self.storm.rights(self.request.credential)
        if credential is None:
            raise NotAllowed("no key")
        request = replace(self.request, credential=credential)
        joined: Joined = await self.ask(lambda web, done: web.run(web.groups.join(APPLICATION, GROUP, request), done))
        self._id = joined.member
        history = self.storm.history
        stay = Life(joined.number, history.born, credential, request.instance, sent + joined.session)
        history.lives.append(stay)
        self.stay, wait, first = stay, 0.0, True
        while self.wanted:  # bounded: by the history
            answer = await self._beat(stay, credential, wait)
            if self.is_over(stay) and self.world.now >= stay.end:
                return
            if answer is not None:
                wait = answer.wait
                if first:
                    first = False
                    self._start(self._handle(stay))
                if self.draining and not self.holds and not self._given:
                    self.wanted = False
        returns = bool(self.request.grace) and not self.draining
        self._end_stay()
        stay.left, stay.may_go = True, not returns
        member = self._id
        await self.ask(
            lambda web, done: web.run(web.groups.leave(APPLICATION, GROUP, member, credential, returns=returns), done)
        )

    def end_of(self, sent: float, session: float) -> float:
        return sent + session

    def is_over(self, stay: Life) -> bool:
        return self.world.now >= stay.end

    async def _beat(self, stay: Life, credential: Credential, wait: float) -> HeartbeatAnswer | None:
        """Sends a heartbeat and follows the answer. Returns None if there was no answer or the session has ended.

        Raises MemberGone.
        """
        sent, giving_back, member = self.world.now, dict(self._given), self._id
        owned: dict[str, dict[int, int]] = {}
        back: dict[str, dict[int, int]] = {}
        for (name, part), holding in self.holds.items():
            owned.setdefault(name, {})[part] = holding.epoch
        for (name, part), epoch in giving_back.items():
            back.setdefault(name, {})[part] = epoch
            stay.said.add((name, part, epoch))
        wait = 0.0 if giving_back else max(0.0, min(wait, stay.end - sent))
        beat = Heartbeat(owned, back, self.draining, wait)
        try:
            answer: HeartbeatAnswer = await self.ask(
                lambda web, done: web.heartbeat(member, credential, beat, done),
                wait + self.habits.patience,
                is_heartbeat=True,
            )
        except MemberGone:
            raise
        except (NoAnswerError, QueueyError):
            if self.world.now < stay.end:
                await asyncio.sleep(0.05)
            return None
        if self.is_over(stay):
            return None
        stay.end = max(stay.end, self.end_of(sent, answer.session))
        for spot, epoch in giving_back.items():
            self.storm.history.check_end(stay, *spot, epoch, "given back")
            if self._given.get(spot) == epoch:
                del self._given[spot]
        self._follow(stay, answer, sent, owned)
        return answer

    def _follow(self, stay: Life, answer: HeartbeatAnswer, sent: float, owned: dict[str, dict[int, int]]) -> None:
        for name, numbers in answer.lost.items():
            for part in map(int, numbers):
                holding = self.holds.get((name, part))
                if holding is not None and owned.get(name, {}).get(part) == holding.epoch:
                    self.storm.history.check_end(stay, name, part, holding.epoch, "lost")
                    self._release(stay, (name, part))
        for name, taken in answer.take.items():
            for part, one in taken.items():
                self._take(stay, (name, int(part)), one)
        for name, requests in answer.give_back.items():
            for part, request in requests.items():
                self._give_back_within(stay, (name, int(part)), request.epoch, sent + request.within)

    def _give_back_within(self, stay: Life, spot: Spot, epoch: int, until: float) -> None:
        """Gives a partition back when its message is handled, or its time is over.

        A deaf member does not. One that is not held is reported again as given back.
        """
        holding = self.holds.get(spot)
        if holding is None:
            self._given[spot] = epoch
        elif holding.epoch == epoch and holding.until is None and not self.habits.deaf:
            holding.until = until
            if not holding.busy:
                self._give_back(stay, spot)
            else:
                late = max(0.0, until - self.world.now)
                self.soon(late, partial(self._give_back, stay, spot, holding), self.life)

    def _take(self, stay: Life, spot: Spot, taken: Taken) -> None:
        """Starts work on a partition after its recorded offset, unless it has this epoch or gives it back."""
        holding = self.holds.get(spot)
        if (holding is not None and holding.epoch >= taken.epoch) or self._given.get(spot) == taken.epoch:
            return
        if holding is not None:
            self._release(stay, spot)
        place = self.storm.place(*spot, taken.epoch)
        position = None if taken.offset is None else ids.parse_position(taken.offset)
        note = None if taken.note is None else b64decode(taken.note)
        number = 0 if position is None else position[0] - FIRST
        self.holds[spot] = Holding(place, taken.epoch, number + 1)
        self.storm.history.check_take(stay, place, taken.epoch, position, taken.came, note)

    def _give_back(self, stay: Life, spot: Spot, holding: Holding | None = None) -> None:
        """Stops work on a partition, and reports that with the next heartbeat, which is often sent at once.

        Does nothing if it holds the partition no more, or not as ``holding``.
        """
        present = self.holds.get(spot)
        if present is None or (holding is not None and present is not holding) or self.stay is not stay:
            return
        self._release(stay, spot)
        self._given[spot] = present.epoch
        if self.heart is not None and self.world.rng.random() < 0.7:
            self.heart()

    def _release(self, stay: Life, spot: Spot) -> None:
        stay.holds.pop(self.holds.pop(spot).place, None)

    # Work

    async def _handle(self, stay: Life) -> None:
        rng, world = self.world.rng, self.world
        while self.stay is stay and self.wanted:  # bounded: by the history
            await asyncio.sleep(world.random_time(self.habits.pace))
            ready = [spot for spot, holding in self.holds.items() if not holding.busy and holding.until is None]
            if not ready or world.now >= stay.end or self.stay is not stay:
                continue
            spot = rng.choice(ready)
            holding = self.holds[spot]
            holding.busy, number = True, holding.next
            holding.next += 1
            if rng.random() < 0.7:
                await asyncio.sleep(world.random_time(self.habits.hurry))
            holding.busy = False
            if rng.random() < 0.8:
                self._start(self._commit(stay, spot, holding.epoch, number))
            is_asked = holding.until is not None or rng.random() < self.habits.generous
            if is_asked and self.holds.get(spot) is holding:
                if rng.random() < 0.5:
                    await asyncio.sleep(world.random_time(0.05))
                self._give_back(stay, spot, holding)

    async def _commit(self, stay: Life, spot: Spot, epoch: int, number: int) -> None:
        """Commits a position, sometimes an older one under a condition, sometimes with a note.

        Gives up after three attempts without an answer, and when the member may not commit any more.
        """
        rng, member, (name, part) = self.world.rng, self._id, spot
        change = OffsetChange(part, position_of(number))
        if number > 2 and rng.random() < 0.1:
            change = OffsetChange(part, position_of(number - rng.choice((0, 2))), position_of(number - 1), compare=True)
        notes: dict[int, bytes | None] = {}
        if rng.random() < 0.4:
            notes[part] = rng.choice((None, b"%d/%d" % (stay.number, number)))
        for _ in range(3):
            try:
                await self.ask(
                    lambda web, done: web.run(
                        web.commit(name, member, stay.credential, [change], {part: epoch}, notes), done
                    )
                )
            except (MemberGone, NotOwner, NotAllowed, OffsetConflict):
                return
            except (NoAnswerError, QueueyError):
                await asyncio.sleep(self.world.random_time(0.2))
            else:
                self.storm.history.counts["committed"] += 1
                return
