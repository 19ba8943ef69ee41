"""A program by the protocol, as JavaScript's client works: heartbeats, and one message after another."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from msgspec import UNSET, UnsetType

from qdo.partitions import Partition, Queue
from queuey.api.groups import Heartbeat, HeartbeatAnswer, PartitionCommit
from queuey.client import MemberGone, Message, NotOwner, QueueNotFound
from queuey.model.errors import QueueyError
from tests.sim.groups.history import Stay
from tests.sim.groups.member import MAX_HANDLING_SECONDS, Member
from tests.sim.groups.network import PATIENCE
from tests.sim.groups.served.client import GroupClient, GroupMember
from tests.sim.groups.service import APPLICATION, STORE

if TYPE_CHECKING:
    from tests.sim.groups.machine import Machine
    from tests.sim.groups.served.storm import ServiceStorm

PAUSE = 0.05
"""Seconds after a heartbeat that failed."""


@dataclass(eq=False)
class Holding:
    """An ownership.

    Attributes:
        epoch: Its epoch.
        stay: For the rules of messages.
        done: The id of the last handled message.
        until: When it must be given back; None if no member waits for it.
        busy: A message is being handled.
    """

    epoch: int
    stay: Stay
    done: str | None
    until: float | None = None
    busy: bool = False


class ScriptedMember(Member):
    """A program that sends heartbeats, handles messages of what it owns, and gives back what others wait for.

    Attributes:
        leaving: It accepts no more partitions, and leaves when it has given all back.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._served = cast("ServiceStorm", machine.storm)
        self.leaving = False
        self._member: GroupMember | None = None
        self._holds: dict[Partition, Holding] = {}
        self._given: dict[Partition, int] = {}
        """The epochs of partitions being given back."""
        self._heart: asyncio.Future[HeartbeatAnswer] | None = None

    async def live(self) -> None:
        while not self._leaves:  # bounded: by the history
            try:
                await self._belong()
            except QueueyError:
                if self._member is not None:
                    self._served.history.end(self._member.life)
                    self._member = None
                await asyncio.sleep(self._world.random_time(0.4))
        self._machine.stop_member()

    async def leave(self) -> None:
        await super().leave()
        self._beat_at_once()

    def _beat_at_once(self) -> None:
        if self._heart is not None:
            self._heart.cancel()

    async def _belong(self) -> None:
        """Joins, and sends heartbeats until the session ends or the member leaves."""
        self._holds.clear()
        self._given.clear()
        machine, settings = self._machine, self._storm.settings
        patterns = () if machine.wants else ("*",)
        instance = machine.name if machine.static else ""
        session, revoke, grace = self._served.session, settings.revoke_timeout, settings.grace if instance else 0.0
        client = GroupClient(self._served, machine)
        member = await client.join(
            "",
            machine.wants,
            patterns,
            instance=instance,
            session=session,
            revoke=revoke,
            grace=grace,
            name=machine.name,
        )
        self._member, wait, handling = member, 0.0, False
        while self._belongs(member):
            if (answer := await self._beat(member, wait)) is not None:
                wait = answer.wait
                if not handling:
                    handling = True
                    self._machine.start(self._handle(member))
                self._leaves = self._leaves or (self.leaving and not self._holds and not self._given)
        while any(holding.busy for holding in self._holds.values()):  # noqa: ASYNC110 # bounded: by MAX_HANDLING_SECONDS
            await asyncio.sleep(PAUSE)
        if self._leaves and not member.is_over():
            self._holds.clear()
            await member.leave(returns=bool(grace) and not self.leaving, within=PATIENCE)

    async def _beat(self, member: GroupMember, wait: float) -> HeartbeatAnswer | None:
        """Sends a heartbeat. Returns its answer, or None without one in time.

        Raises:
            MemberGone: The member was removed.
        """
        sent, returning = self._world.now, dict(self._given)
        owned = {partition: holding.epoch for partition, holding in self._holds.items()}
        wait = 0.0 if returning else max(0.0, min(wait, member.life.end - sent))
        beat = Heartbeat(_by_queue(owned), _by_queue(returning), self.leaving, wait)
        self._heart = asyncio.ensure_future(member.heartbeat(beat, within=wait + self._machine.habits.patience))
        try:
            answer = await self._heart
        except asyncio.CancelledError:
            return None
        except MemberGone:
            raise
        except QueueyError:
            await asyncio.sleep(PAUSE)
            return None
        finally:
            self._heart = None
        if member.is_over():
            return None
        for partition, epoch in returning.items():
            if self._given.get(partition) == epoch:
                del self._given[partition]
        self._follow(member, answer, sent, owned)
        return answer

    def _follow(self, member: GroupMember, answer: HeartbeatAnswer, sent: float, owned: dict[Partition, int]) -> None:
        for name, numbers in answer.lost.items():
            for partition in (_partition(name, number) for number in numbers):
                holding = self._holds.get(partition)
                if holding is not None and owned.get(partition) == holding.epoch:
                    del self._holds[partition]
        session = self._storm.session_of(self._machine, [])
        for name, taken in answer.take.items():
            for number, one in taken.items():
                partition = _partition(name, number)
                holding = self._holds.get(partition)
                held = self._given.get(partition, 0) if holding is None else holding.epoch
                if held < one.epoch:
                    self._holds[partition] = Holding(one.epoch, Stay(session), one.offset)
        for name, requests in answer.give_back.items():
            for number, request in requests.items():
                self._give_back_within(_partition(name, number), request.epoch, sent + request.within)

    def _give_back_within(self, partition: Partition, epoch: int, until: float) -> None:
        """Gives a partition back when its message is handled, or its time is over. A deaf member does not.

        One that is not held is reported again as given back.
        """
        holding = self._holds.get(partition)
        if holding is None:
            self._given[partition] = epoch
        elif holding.epoch == epoch and holding.until is None and not self._machine.habits.deaf:
            holding.until = until
            if not holding.busy:
                self._give_back(partition, holding)
            else:
                late = max(0.0, until - self._world.now)
                self._machine.soon(late, partial(self._give_back, partition, holding), self._machine.life)

    def _give_back(self, partition: Partition, holding: Holding) -> None:
        """Stops work on a partition, and reports that with the next heartbeat, which is sent at once."""
        if self._holds.get(partition) is holding:
            del self._holds[partition]
            self._given[partition] = holding.epoch
            self._history.excuse_handling(self._machine.name, partition)
            self._beat_at_once()

    # Work

    async def _handle(self, member: GroupMember) -> None:
        rng, world, habits = self._world.rng, self._world, self._machine.habits
        while self._belongs(member):  # bounded: by the history
            await asyncio.sleep(world.random_time(habits.pace))
            ready = [(one, holding) for one, holding in self._holds.items() if not holding.busy]
            ready = [(one, holding) for one, holding in ready if holding.until is None and self._next(one, holding)]
            if not ready or self._machine.no_service or not self._belongs(member):
                continue
            partition, holding = rng.choice(ready)
            message = self._next(partition, holding)
            assert message is not None
            holding.busy, name = True, self._machine.name
            self._history.attempts["scripted"] += 1
            self._history.begin_handling(name, holding.stay, partition, message, world.now)
            await asyncio.sleep(min(MAX_HANDLING_SECONDS, world.random_time(habits.hurry)))
            self._history.end_handling(name, holding.stay, partition, message)
            holding.busy, holding.done = False, message.id
            if rng.random() < 0.8 or self._next(partition, holding) is None:
                self._machine.start(self._commit(member, partition, holding, message.id))
            if holding.until is not None or rng.random() < habits.generous:
                self._give_back(partition, holding)

    def _belongs(self, member: GroupMember) -> bool:
        return self._member is member and not self._leaves and not member.is_over()

    def _next(self, partition: Partition, holding: Holding) -> Message | None:
        log = self._storm.service.queues.get(partition.queue.name, {}).get(partition.number)
        messages = () if log is None else log.messages[log.after(holding.done) :][:1]
        return messages[0] if messages else None

    async def _commit(self, member: GroupMember, partition: Partition, holding: Holding, identifier: str) -> None:
        """Commits an offset, sometimes with a note. Tries again until the ownership ends."""
        rng = self._world.rng
        note: str | UnsetType | None = UNSET
        if rng.random() < 0.4:
            note = rng.choice((None, b64encode(identifier.encode()).decode()))
        commit = PartitionCommit(identifier, holding.epoch, note=note)
        while self._member is member and not member.is_over():  # bounded: by the history
            try:
                await member.commit(partition.queue.name, {partition.number: commit}, within=PATIENCE)
            except (MemberGone, NotOwner, QueueNotFound):
                return
            except QueueyError:
                await asyncio.sleep(self._world.random_time(0.2))
            else:
                self._served.history.counts["committed"] += 1
                self._history.check_commit(partition, identifier)
                return
            if self._holds.get(partition) is not holding:
                return


def _partition(name: str, number: int) -> Partition:
    return Partition(Queue(STORE, APPLICATION, name), number)


def _by_queue(epochs: dict[Partition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for partition, epoch in epochs.items():
        found.setdefault(partition.queue.name, {})[partition.number] = epoch
    return found
