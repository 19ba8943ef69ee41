"""A storm: members and processes run under faults for a while, then without until each partition has its owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace as replaced
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from msgspec.structs import replace

from queuey.access import Caller, Grant
from queuey.groups.ownership import OwnedOffset
from queuey.groups.state import Credential, JoinRequest
from queuey.messages import OffsetChange
from tests.sim.service_groups.history import History, Life, Place, may_read_and_claim
from tests.sim.service_groups.members import Member, position_of
from tests.sim.service_groups.network import Habits
from tests.sim.service_groups.stored import APPLICATION, GROUP, Faults, Stored
from tests.sim.service_groups.web import Web
from tests.sim.world import World

STORM = 14.0
"""Seconds of faults."""
LATE = 12.0
"""Seconds after which requests of the storm may still arrive."""
NAMES = "a", "b", "c"
OWNER = Caller(frozenset({f"app:{APPLICATION}"}))
NARROW = Caller(grants=(Grant(APPLICATION, frozenset({"read", "claim"}), ("a",)),))
ANYBODY = Credential(b"somebody", OWNER)
"""A credential that is not a member's."""


class Storm:
    """One history.

    Args:
        seed: Seeds all random choices.
        linear: Whether the store has SQLite's semantics; None: random.

    Attributes:
        present: Credentials with their present rights.
        session, revoke, grace: Of all members, in ms; 0: random.
        slack: S, in seconds; 0: random.
        processes: Number of processes; 0: random.
    """

    session = revoke = grace = processes = 0
    slack = 0.0

    def __init__(self, seed: int, *, linear: bool | None = None) -> None:
        self.world = world = World(seed)
        self.rng = rng = world.rng
        linear = rng.random() < 0.3 if linear is None else linear
        slack = self.slack or (1.0 if linear else rng.choice((0.25, 0.5, 2.0)))
        self.stored = Stored(world, self.draw_faults(linear=linear), linear=linear, slack=slack)
        self.history = History(self.stored)
        self.present: dict[bytes, Credential | None] = {ANYBODY.id: ANYBODY}
        self.history.rights = self.present
        self.uids: dict[str, list[int]] = {name: [] for name in NAMES}
        offsets = (-0.4 * slack, 0.0, 0.4 * slack)
        number = self.processes or rng.choice((1, 2, 2, 3))
        self.webs = [Web(self, 0.0 if linear else rng.choice(offsets)) for _ in range(number)]
        for name in NAMES[: rng.choice((1, 2, 2, 3))]:
            self.create(name)
        self.session = self.session or rng.choice((2000, 3000, 5000))
        self.revoke = self.revoke or rng.choice((300, 1500, 4000))
        self.grace = self.grace or rng.choice((0, 0, 3000))
        self.history.grace = bool(self.grace)
        self.members = [self.draw_member(number) for number in range(rng.choice((2, 3, 3, 4)))]

    def draw_faults(self, *, linear: bool) -> Faults:
        rng = self.rng
        if linear:
            return Faults(failing=rng.choice((0, 0, 0.03)), hesitant=rng.choice((0, 0.004)), slow=0.003)
        return Faults(
            lost=rng.choice((0, 0.05)),
            stuck=rng.choice((0, 0.05)),
            failing=rng.choice((0, 0.03)),
            late=rng.choice((0, 0.1)),
            lacking=rng.choice((0, 0.1)),
            hesitant=rng.choice((0, 0.004, 0.01)),
            reading=rng.choice((0, 0, 0.02)),
            slow=rng.choice((0.003, 0.02)),
        )

    def draw_member(self, number: int) -> Member:
        """Draws a member: its key, names, and perhaps an instance name that another one also has."""
        rng = self.rng
        credential = Credential(b"key %d" % rng.choice((0, number)), OWNER)
        self.present.setdefault(credential.id, credential)
        names, patterns = self.draw_wishes()
        static = self.grace and rng.random() < 0.7
        request = JoinRequest(
            names,
            patterns,
            credential,
            instance=f"i{rng.choice((number, number, 0))}" if static else "",
            session=self.session,
            revoke=self.revoke,
            grace=self.grace if static else 0,
        )
        return Member(self, request, self.draw_habits())

    def draw_wishes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.rng.random() < 0.7:
            return NAMES, ()
        return self.rng.choice(((NAMES, ()), ((), ("*",)), (("a",), ("[bc]",)), (("a", "b"), ())))

    def draw_habits(self) -> Habits:
        rng = self.rng
        trouble = rng.choice((0.0, 0.0, 1.0))
        return Habits(
            pace=rng.choice((0.3, 1.0)),
            hurry=rng.choice((0.05, 0.6)),
            deaf=rng.random() < 0.1,
            repeats=trouble * rng.choice((0.05, 0.2)),
            loses=trouble * rng.choice((0.02, 0.1)),
            late=trouble * rng.choice((0.02, 0.1)),
            patience=rng.choice((1.5, 1.5, 15.0)),
        )

    def choose_disturbances(self) -> list[Callable[[], None]]:
        kinds = (
            self._crash_web,
            self._pause_web,
            self._stand_web,
            *[self._crash_member] * 2,
            self._pause_member,
            *[self._cut_member] * 2,
            *[self._leave] * 2,
            self._drain,
            self._replace,
            *[self._change_queue] * 2,
            self._change_rights,
            self._record_offset,
            self._stop_all_members,
        )
        return [self.rng.choice(kinds) for _ in range(self.rng.choice((0, 2, 4, 8)))]

    # Used by members and processes

    def rights(self, credential: Credential) -> Credential | None:
        """Returns the credential with its present rights, or None if it was revoked."""
        return self.present.get(credential.id)

    def create(self, name: str, partitions: int = 0) -> None:
        self.uids[name].append(self.stored.create(name, partitions or self.rng.choice((1, 2, 3, 4))).uid)

    def place(self, name: str, part: int, epoch: int) -> Place:
        """Returns the partition that was owned under an epoch, as some queues of a name were recreated."""
        for uid in reversed(self.uids[name]):
            row = self.stored.rows(uid).value.get(part)
            if row is not None and row.epoch == epoch:
                return uid, part
        return self.uids[name][-1], part

    # Events

    def run(self) -> History:
        world, rng = self.world, self.rng
        for member in self.members:
            world.after(rng.random() * rng.choice((0.1, 2.0, 8.0)), member.begin)
        for deed in self.choose_disturbances():
            world.after(rng.random() * STORM, deed)
        world.run(world.now + STORM)
        self.end_faults()
        end = world.now + LATE + (2 * self.session + self.revoke + self.grace) / 1000 + 10
        while (missing := self._find_unsettled()) and world.now < end and not self.history.wrong:
            world.run(world.now + 1.0)
        if missing and not self.history.wrong:
            self.history.record_violation(f"{missing[0]}")
        self.end()
        return self.history

    def end(self) -> None:
        for web in self.webs:
            web.process.life += 1
        for member in self.members:
            member.life += 1
        self.world.end()

    def end_faults(self) -> None:
        """Ends all faults and bad habits, but starts no member again."""
        self.stored.faults = Faults(slow=self.stored.faults.slow)
        for process in (*(web.process for web in self.webs), *self.members):
            process.paused_until = 0.0
        for member in self.members:
            member.cut = 0.0
            member.habits = replaced(
                member.habits, deaf=False, generous=0.0, repeats=0.0, loses=0.0, late=0.0, patience=1.5
            )

    def _crash_web(self) -> None:
        self.rng.choice(self.webs).crash()

    def _pause_web(self) -> None:
        self.rng.choice(self.webs).process.pause(self.rng.choice((0.7, 3.0, 7.0)))

    def _stand_web(self) -> None:
        process = self.rng.choice(self.webs).process
        (process.pause if self.stored.linear else process.stand)(self.rng.choice((0.7, 3.0, 7.0)))

    def _crash_member(self) -> None:
        member = self.rng.choice(self.members)
        member.crash()
        if self.rng.random() < 0.7:
            self._restart_later(member)

    def _restart_later(self, member: Member) -> None:
        """Begins another life of a member after a while; one that still lives then crashes."""

        def begin() -> None:
            member.crash()
            member.wanted = True
            member.begin()

        self.world.after(self.rng.random() * self.rng.choice((0.2, 5.0)), begin)

    def _pause_member(self) -> None:
        self.rng.choice(self.members).pause(self.rng.choice((0.7, 3.0, 7.0)))

    def _cut_member(self) -> None:
        member = self.rng.choice(self.members)
        member.cut = self.world.now + self.rng.choice((1.0, 4.0, 9.0))

    def _leave(self) -> None:
        member = self.rng.choice(self.members)
        member.wanted = False
        if self.rng.random() < 0.7:
            self._restart_later(member)

    def _drain(self) -> None:
        member = self.rng.choice(self.members)
        member.draining = True
        self._restart_later(member)

    def _replace(self) -> None:
        """Starts another machine with the request of a member. A member with an instance name ends soon afterwards."""
        former = self.rng.choice(self.members)
        member = Member(self, former.request, former.habits)
        self.members.append(member)
        member.begin()
        if former.request.instance:
            self.world.after(self.rng.random() * 3, partial(self._end_member, former))

    def _end_member(self, member: Member) -> None:
        member.wanted = False

    def _change_queue(self) -> None:
        """Creates a missing queue; otherwise adds partitions, purges or removes it. Most removed queues come back."""
        rng, stored = self.rng, self.stored
        name = rng.choice(NAMES)
        queue = stored.queues.get(name)
        if queue is None:
            self.create(name)
            return
        choice = rng.random()
        if choice < 0.3:
            stored.queues[name] = replace(queue, partitions=queue.partitions + 2, version=next(stored.tokens))
        elif choice < 0.5:
            qid = 1000 + next(stored.tokens)
            stored.queues[name] = replace(queue, qid=qid, version=next(stored.tokens))
        else:
            del stored.queues[name]
            if rng.random() < 0.7:
                self.world.after(rng.random() * rng.choice((0.1, 6.0)), partial(self._create_if_missing, name))

    def _create_if_missing(self, name: str) -> None:
        if name not in self.stored.queues:
            self.create(name)

    def _change_rights(self) -> None:
        """Revokes, narrows or restores any key but the first. A revoked key comes back after a while."""
        rng = self.rng
        key = rng.choice(list(self.present)[1:])
        now = rng.choice((None, NARROW, OWNER))
        self._set_rights(key, now)
        if now is None:
            self.world.after(rng.random() * 4, partial(self._set_rights, key, OWNER))

    def _set_rights(self, key: bytes, caller: Caller | None) -> None:
        """Sets the rights of a key. Lives with this key are excused for errors."""
        self.present[key] = None if caller is None else Credential(key, caller)
        self.history.narrowed[key] = self.world.now
        for life in self.history.lives:
            life.excused = life.excused or life.credential.id == key

    def _record_offset(self) -> None:
        rng, web, name = self.rng, self.rng.choice(self.webs), self.rng.choice(list(self.stored.queues) or ["a"])
        change = OffsetChange(rng.choice((1, 2)), position_of(rng.choice((1, 50))))
        web.run(web.record(name, ANYBODY, [change]), lambda _value, _error: None)

    def _stop_all_members(self) -> None:
        for member in self.members:
            member.wanted = False
            self._restart_later(member)
        for deed in (self._record_offset, self._forget_offsets, self._forget_offsets):
            self.world.after(self.rng.random() * 3, deed)

    def _forget_offsets(self) -> None:
        """Forgets the offsets of a random queue, or the whole group."""
        rng, web = self.rng, self.rng.choice(self.webs)
        name = rng.choice(list(self.stored.queues) or ["a"])
        call: Any = web.forget(name, ANYBODY)
        if rng.random() < 0.5:
            call.close()
            call = web.groups.forget(APPLICATION, GROUP)
        web.run(call, lambda _value, _error: None)

    # Checks at the end

    def _find_unsettled(self) -> list[str]:
        """Returns what still keeps the group from rest: partitions with a wrong owner, and then uneven loads."""
        problems, loads = [], Counter[int]()
        living = {member.stay.number: member for member in self.members if member.wanted and member.stay is not None}
        unequal = any(member.wanted and member.stay is None for member in self.members)
        for name, queue in self.stored.queues.items():
            takers = {
                number
                for number, member in living.items()
                if self._wants(member.request, name)
                and may_read_and_claim(self.present.get(member.request.credential.id), queue)
            }
            unequal = unequal or takers != living.keys()
            rows = self.stored.rows(queue.uid).value
            for part in range(1, queue.partitions + 1):
                row = rows.get(part, OwnedOffset(part))
                owner = row.owner
                stay: Life | None = living[owner].stay if owner in living else None
                if stay is not None and row.epoch < stay.born:
                    stay = None  # The owner was a member of a removed group.
                if not takers:
                    if stay is not None:
                        problems.append(f"O6: {owner} keeps {name}/{part}")
                elif owner not in takers or stay is None:
                    problems.append(f"O5: {owner} owns {name}/{part}, not one of {sorted(takers)}")
                elif stay.holds.get((queue.uid, part)) != row.epoch:
                    problems.append(f"O5: {owner} does not know that it owns {name}/{part}")
                loads[owner] += 1
        uneven = living and max(map(loads.get, living, [0] * len(living))) - min(map(loads.get, living, [0])) > 1
        if not problems and not unequal and uneven:
            problems.append(f"O7: {sorted(loads.items())}")
        return problems

    def _wants(self, request: JoinRequest, name: str) -> bool:
        return name in request.names or any(fnmatchcase(name, pattern) for pattern in request.patterns)
