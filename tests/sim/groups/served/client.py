"""The client of a group of the service, over the simulated network, and what the rules need of its answers."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from queuey.api.groups import Heartbeat, HeartbeatAnswer, Joined, PartitionCommit
from queuey.client.errors import AnswerTimeout, ErrorAnswer, error_for
from queuey.groups.rules.group_state import JoinRequest
from queuey.model import ids
from queuey.model.errors import QueueyError
from queuey.model.messages import OffsetChange
from queuey.web.errors import status_of
from tests.sim.groups.network import PATIENCE, Begin, NoAnswerError
from tests.sim.groups.served.rules import Life, Place
from tests.sim.groups.served.stored import APPLICATION, GROUP

if TYPE_CHECKING:
    from tests.sim.groups.machine import Machine
    from tests.sim.groups.served.storm import ServiceStorm


class GroupClient:
    """The groups of the service, as the client of one machine reaches them.

    Args:
        storm: The history that it is part of.
        machine: The machine.
    """

    def __init__(self, storm: ServiceStorm, machine: Machine) -> None:
        self.storm = storm
        self.machine = machine

    async def join(
        self,
        _group: str,
        queues: Iterable[str],
        patterns: Iterable[str],
        *,
        instance: str,
        session: float,
        revoke: float,
        grace: float,
        name: str,
    ) -> GroupMember:
        sent, credential = self.machine.world.now, self.storm.credential(self.machine)
        times = (round(1000 * session), round(1000 * revoke), round(1000 * grace))
        request = JoinRequest(tuple(queues), tuple(patterns), credential, instance, *times, name)
        joined: Joined = await self.ask(
            lambda web, done: web.run(web.groups.join(APPLICATION, GROUP, request), done), PATIENCE
        )
        life = self.storm.history.begin(self.machine, joined.number, credential, instance, sent + joined.session)
        return GroupMember(self, joined, life)

    async def ask(self, begin: Begin, within: float) -> Any:  # noqa: ANN401 - of the use case
        """Returns the answer, or raises the error that a client would raise."""
        try:
            return await self.machine.ask(begin, within=within)
        except NoAnswerError:
            raise AnswerTimeout("there is no answer") from None
        except QueueyError as error:
            raise error_for(
                ErrorAnswer(
                    status=status_of(error),
                    code=error.code,
                    current=getattr(error, "current", {}),
                    applied=getattr(error, "applied", ()),
                    not_owned=getattr(error, "partitions", ()),
                )
            ) from error


class GroupMember:
    """A member, as its client has it. It tells the history which partitions the member may work on.

    Attributes:
        joined: The answer to its join.
        life: Its membership.
    """

    def __init__(self, client: GroupClient, joined: Joined, life: Life) -> None:
        self.joined = joined
        self._client = client
        self.life = life
        self._history = client.storm.history

    async def access(self) -> None:
        """No other process can send its heartbeats."""

    def is_over(self) -> bool:
        """Returns whether its session has ended, by its own count."""
        return self.life.ended or self._history.now >= self.life.end

    async def heartbeat(self, beat: Heartbeat, *, within: float) -> HeartbeatAnswer:
        life, sent, who = self.life, self._client.machine.world.now, self.joined.member
        returned = {(name, n): epoch for name, epochs in beat.given_back.items() for n, epoch in epochs.items()}
        for (name, number), epoch in returned.items():
            life.said.add((name, number, epoch))
            self._release(name, number, epoch)
        answer: HeartbeatAnswer = await self._client.ask(
            lambda web, done: web.heartbeat(who, life.credential, beat, done), within
        )
        if not self.is_over():
            life.end = max(life.end, sent + answer.session)
            for (name, number), epoch in returned.items():
                self._history.rules.check_end(life, name, number, epoch, "given back")
            self._follow(answer, beat)
        return answer

    def _follow(self, answer: HeartbeatAnswer, beat: Heartbeat) -> None:
        life, rules = self.life, self._history.rules
        for name, numbers in answer.lost.items():
            for number in numbers:
                if (epoch := beat.owned.get(name, {}).get(number)) is not None and self._holds(name, number, epoch):
                    rules.check_end(life, name, number, epoch, "lost")
                    life.lost[self._place(name, number, epoch)] = self._history.now
                    self._release(name, number, epoch)
        for name, taken in answer.take.items():
            for number, one in taken.items():
                place = self._place(name, number, one.epoch)
                if (name, number, one.epoch) in life.said or one.epoch <= life.holds.get(place, 0):
                    continue
                position = None if one.offset is None else ids.parse_position(one.offset)
                note = None if one.note is None else b64decode(one.note)
                rules.check_take(life, place, one.epoch, position, one.came, note)

    def _place(self, name: str, number: int, epoch: int) -> Place:
        return self._client.storm.place(name, number, epoch)

    def _holds(self, name: str, number: int, epoch: int) -> bool:
        return self.life.holds.get(self._place(name, number, epoch)) == epoch

    def _release(self, name: str, number: int, epoch: int) -> None:
        if self._holds(name, number, epoch):
            del self.life.holds[self._place(name, number, epoch)]

    async def commit(self, queue: str, commits: Mapping[int, PartitionCommit], *, within: float) -> None:
        changes, epochs, notes = [], {}, {}
        for number, one in commits.items():
            expected = None if one.expected is UNSET or one.expected is None else ids.parse_position(one.expected)
            compare = one.expected is not UNSET
            changes.append(OffsetChange(number, ids.parse_position(one.offset), expected, compare=compare))
            epochs[number] = one.epoch or 0
            if one.note is not UNSET:
                notes[number] = None if one.note is None else b64decode(one.note)
        who = self.joined.member, self.life.credential
        await self._client.ask(lambda web, done: web.run(web.commit(queue, *who, changes, epochs, notes), done), within)

    async def leave(self, *, returns: bool, within: float) -> None:
        self._history.end(self.life, left=True, may_go=not returns)
        who = self.joined.member, self.life.credential
        await self._client.ask(
            lambda web, done: web.run(web.groups.leave(APPLICATION, GROUP, *who, returns=returns), done), within
        )
