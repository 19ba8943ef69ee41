"""A group as one process serves it: its members' heartbeats, changes of its state, and what is done now and then."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from msgspec.structs import replace

from queuey.api.groups import Heartbeat, HeartbeatAnswer
from queuey.errors import GroupElsewhere, MemberGone, QueueyError, StoreBusy, StoreClosed, StoreUnavailable
from queuey.groups.drafts import GroupDraft, Rights
from queuey.groups.ownership import ClockSample, GroupSessions
from queuey.groups.planning import planned
from queuey.groups.state import Credential, GroupState, Member
from queuey.service.core import Core
from queuey.service.groups.answers import tell, to_give_back
from queuey.service.groups.hand_overs import HandOvers
from queuey.service.groups.searches import find_queues
from queuey.service.groups.state_cache import StateCache
from queuey.service.watching import Waiter
from queuey.storage import Store

ATTEMPTS = 20
"""Max attempts at a change of the state that others interfere with."""
STATE_AGE = 2.0
"""Max age of the state by which requests are answered, in seconds; it is read afresh before a refusal."""
POLL, QUICK_POLL = 0.5, 0.2
"""Intervals between reads of the head, in seconds; the second one while a member waits or has to give back."""
MAX_POLLS = 200
"""Max reads of heads of one process per second."""
SEARCH = 15.0
"""Interval between searches for queues, in seconds, of all processes together."""
RIGHTS = 1.0
"""Interval between checks of the members' rights, in seconds."""
LATE = 500
"""Milliseconds after which a plan that another process has to make is overdue."""
KEPT, KEPT_EMPTY = 60.0, 2.0
"""Seconds for which a group is kept that has no heartbeats here, and one that does not exist."""
MAX_QUEUES = 128
"""Max queues that a process reads in a turn because members wait for them."""
MAX_AT_ARRIVAL = 64
"""Max queues that a heartbeat reads because its member waits for partitions, and because it names them."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


Act = Callable[[GroupDraft], Any]


@dataclass(slots=True)
class _Beat:
    """The last heartbeat of a member that came to this process.

    Attributes:
        content: What it names.
        waiter: It is woken by news; None: it does not wait.
        clock: At its arrival.
        arrived, when: Tick and boot time of its arrival.
        told: What the last answer asked the member to give back.
    """

    content: Heartbeat
    waiter: Waiter | None
    clock: ClockSample
    arrived: int
    when: float
    told: frozenset[tuple[str, int, int]] = frozenset()

    @property
    def waits(self) -> bool:
        return self.waiter is not None and not self.waiter.closed


class LocalGroup:
    """A group in one process. Used in the loop's thread.

    Args:
        store: Its owner closes it.
        core: The loop and the clock.
        key: Application and name of the group.
        rights: Returns a credential with its present rights; blocks.
        searching: Held while queues are searched and a plan is made: by one group of an application at a time.
        counts: Of all groups of this process: how many have heartbeats here, plans, moves, and ended sessions.

    Attributes:
        cache: Its state.
        owners: The owners of its partitions.
        used: Boot time of the last request.
        unassigned: Partitions without a target, by the last plan that this process made.
    """

    def __init__(
        self,
        store: Store,
        core: Core,
        key: tuple[str, str],
        rights: Rights,
        searching: asyncio.Lock,
        counts: Counter[str],
    ) -> None:
        self._store = store
        self._core = core
        self._key = key
        self._rights = rights
        self._searching = searching
        self._counts = counts
        self.cache = StateCache(store, core, key, self._wake_all)
        self.owners = HandOvers(store, core, key, self.cache, self._to_tell, self._need_plan, counts)
        self._targets = self.cache.targets
        self.used = core.boottime()
        self.unassigned = 0
        self._beats: dict[int, _Beat] = {}
        self._acts: list[tuple[Act, asyncio.Future[Any]]] = []
        self._changing: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._sessions = GroupSessions(0, 0, {})
        self._sessions_read = self._rights_read = -math.inf
        self._renewed: dict[int, int] = {}
        self._asked: dict[tuple[int, int], float] = {}
        self._last_queue = ""
        """The last one of the turns in which members wait."""

    @property
    def members(self) -> int:
        """Number of members whose heartbeats come to this process."""
        return len(self._beats)

    @property
    def is_needed(self) -> bool:
        """False if it need not be kept in memory."""
        kept = KEPT if self.cache.state.head.version else KEPT_EMPTY
        return bool(self._beats or self._acts) or self._core.boottime() - self.used < kept

    # Members

    async def member(self, text: str, credential: Credential) -> Member:
        """Returns a member by its id.

        Raises:
            MemberGone: It is none, or has joined with another credential.
            GroupElsewhere: The group is served in another data centre.
        """
        for max_age in (STATE_AGE, 0.0):
            state = await self.cache.refresh(max_age)
            number, _, secret = text.partition("-")
            member = state.members.get(int(number)) if number.isdecimal() and len(number) < 20 else None  # noqa: PLR2004
            if (
                member is not None
                and hmac.compare_digest(member.digest, digest_of(secret))
                and state.subscriptions[member.subscription].credential.id == credential.id
                and member.state != "absent"
                and self._is_here(state)
            ):
                return member
        self.require_here(state)
        raise MemberGone

    def _is_here(self, state: GroupState) -> bool:
        return state.head.centre in {"", self._store.centre}

    def require_here(self, state: GroupState) -> None:
        if not self._is_here(state):
            raise GroupElsewhere(self._key[1], state.head.centre)

    def _seen(self, member: Member) -> int:
        """Returns when a member was last seen, as far as this process knows (ms)."""
        seen = self._sessions.members.get(member.number)
        moved = self.cache.state.head.moved
        return max(
            member.joined,
            moved + member.session // 3 if moved else 0,
            0 if seen is None else seen.seen,
            self._renewed.get(member.number, 0),
        )

    async def require_session(self, member: Member) -> None:
        """Makes sure that the session of a member is not over, if that can be known.

        Raises:
            MemberGone: It is over.
        """
        if member.number in self._beats:
            return
        with suppress(StoreUnavailable):  # A commit needs no clock: the store decides.
            if self._core.boottime() - self._sessions_read > STATE_AGE:
                await self.read_sessions()
            end = self._seen(member) + member.session + round(self._store.clock_difference * 1000)
            if self._sessions.clock > end:
                raise MemberGone

    async def heartbeat(
        self, text: str, credential: Credential, content: Heartbeat, waiter: Waiter | None, *, last: bool
    ) -> HeartbeatAnswer | None:
        """See :meth:`queuey.service.groups.GroupUseCases.heartbeat`."""
        clock, now, arrived = self._store.sample_clock(), self._core.boottime(), self.cache.tick()
        member = await self.member(text, credential)
        number = member.number
        beat = self._beats.get(number)
        if is_new := beat is None or waiter is None or beat.waiter is not waiter:
            beat = _Beat(content, waiter, clock, arrived, now, beat.told if beat is not None else frozenset())
            self._beats[number] = beat
            if self._following is None:
                self._following = self._core.spawn(self._follow())
        try:
            member = await self._renew(member, beat, credential)
            answer = await self._told(member, beat, is_new=is_new)
            asked = to_give_back(answer)
            if waiter is not None and not last and not (answer.take or answer.lost or asked - beat.told):
                return None
            self.require_here(await self.cache.refresh(STATE_AGE, serial_age=answer.wait))
            await self._core.in_thread(partial(self._store.confirm_clock, beat.clock))
        except MemberGone:
            self._beats.pop(number, None)
            raise
        beat.told, beat.waiter = asked, None
        return answer

    async def _renew(self, member: Member, beat: _Beat, credential: Credential) -> Member:
        """Checks the rights of a member, has it seen, and has it present or leaving; returns it."""
        number = member.number
        subscription = self.cache.state.subscriptions[member.subscription]
        if subscription.credential.caller != credential.caller:
            await self.change(partial(GroupDraft.remove, number=number))
            raise MemberGone
        now = self._store.claim_now()
        if now >= self._seen(member) + member.session:
            await self.read_sessions()
            if now >= self._seen(member) + member.session:
                raise MemberGone
        if now - self._seen(member) >= member.session // 3 and not self._is_overdue(member, beat, now):
            renew = partial(self._store.renew_session, *self._key, number, member.session)
            self._renewed[number] = max(await self._core.in_thread(renew), self._renewed.get(number, 0))
        if beat.content.leaving and member.state in {"new", "present"}:
            await self.change(partial(GroupDraft.drain, number=number))
        elif member.state == "new":
            await self.change(partial(GroupDraft.be_present, number=number))
        present = self.cache.state.members.get(number)
        if present is None:
            raise MemberGone
        return present

    def _is_overdue(self, member: Member, beat: _Beat, now: int) -> bool:
        """Returns whether a member is late in giving back what it names, or owns and was asked for."""
        held = {name: dict(some) for name, some in beat.content.owned.items()}
        for name in self._asked_of(member.number):
            for partition, row in (self.owners.known(name) or {}).items():
                if row.owner == member.number and partition not in beat.content.given_back.get(name, {}):
                    held.setdefault(name, {})[partition] = row.epoch
        return self.cache.targets.is_overdue(member, held, now - round(self._store.clock_difference * 1000))

    def _asked_of(self, number: int) -> set[str]:
        """Returns queues of which others want partitions that a member may own without knowing."""
        seen = self._sessions.members.get(number)
        plan = self.cache.state.plan
        return {plan[uid].name for uid in seen.asked if uid in plan} if seen is not None else set()

    async def _told(self, member: Member, beat: _Beat, *, is_new: bool) -> HeartbeatAnswer:
        """Takes what a member gives back, and returns what it has to do."""
        number, owned, given_back = member.number, beat.content.owned, beat.content.given_back
        if is_new and given_back:
            words = {name: {n: (number, epoch) for n, epoch in some.items()} for name, some in given_back.items()}
            await self.owners.settle_all(words, beat.arrived, words)
        for _ in range(ATTEMPTS):
            targets, since = self.cache.targets, max(beat.arrived, self.cache.planned)
            named = targets.foreign(number, owned) | self._asked_of(number) | given_back.keys()
            missing = targets.missing(number, owned).keys() - named
            for names in (named, missing):  # The rest is read in turns while it waits, or for its next heartbeat.
                unread = sorted(name for name in names if self.owners.known(name, since) is None)
                some = self._core.chance.sample(unread, min(MAX_AT_ARRIVAL, len(unread)))
                await self.owners.settle_all(some, since)
            if targets is self.cache.targets:
                break
        known = {name: self.owners.known(name, since) for name in sorted(named | missing)}
        rows = {name: there for name, there in known.items() if there is not None}
        return tell(targets, member, beat.content, rows, seen=self._seen(member), now=beat.clock.now)

    async def leave(self, text: str, credential: Credential, *, returns: bool, said: bool) -> None:
        """See :meth:`queuey.service.groups.GroupUseCases.leave`."""
        member = await self.member(text, credential)
        number = member.number
        beat = self._beats.pop(number, None)
        names = self.cache.targets.names(number).union(beat.content.owned if beat is not None else ())
        if said and self.cache.state.subscriptions[member.subscription].credential.caller == credential.caller:
            # It has given back all that it owns, whoever hands that over first. With a right that has ended it is lost.
            self.owners.left.add(number)
        try:
            await self.change(partial(GroupDraft.leave, number=number, returns=returns))
            with suppress(QueueyError):
                await self.owners.settle_all(names, self.cache.tick())
        finally:
            self.owners.left.discard(number)

    def _to_tell(self, name: str) -> set[int]:
        """Returns the partitions of a queue that are planned for members here and that these do not name."""
        planned = self.cache.targets.queues.get(name)
        return {
            number
            for number, target in (planned.targets.items() if planned is not None else ())
            if (beat := self._beats.get(target.member)) is not None
            and beat.content.owned.get(name, {}).get(number, 0) < target.epoch
        }

    # Changes of the state

    def change(self, act: Callable[[GroupDraft], T]) -> asyncio.Future[T]:
        """Changes the state, in one transaction with what else waits; gives the result of ``act``.

        Args:
            act: Is called again if another process is faster, or if a transaction is in doubt.

        Raises:
            QueueyError: As ``act`` does by the present state, or the store.
        """
        done: asyncio.Future[T] = self._core.loop.create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())  # Nobody need wait for it.
        self._acts.append((act, done))
        if self._changing is None or self._changing.done():
            self._changing = self._core.spawn(self._change())
        return done

    def _need_plan(self) -> None:
        if self.cache.state.head.due is None:
            self.change(GroupDraft.ask_for_plan)

    async def _change(self) -> None:
        while self._acts:
            acts, self._acts = self._acts, []
            try:
                results = await self._transact([act for act, _ in acts])
            except asyncio.CancelledError:
                acts += self._acts
                _settle(acts, [StoreClosed("The service is ending.")] * len(acts))
                raise
            except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                results = [error] * len(acts)
            _settle(acts, results)

    async def _transact(self, acts: list[Act]) -> list[Any]:
        """Applies acts in one transaction; returns their results, some of which may be errors."""
        is_in_doubt = False
        for _ in range(ATTEMPTS):
            began = self._core.boottime()
            sessions = await self.read_sessions()
            state = await self.cache.refresh(STATE_AGE)
            if not self._is_here(state):
                self.require_here(state := await self.cache.refresh())
            draft = self._draft(state, sessions)
            ended = draft.end_sessions()
            results = [_result(act, draft) for act in acts]
            if any(isinstance(each, QueueyError) for each in results) and await self.cache.refresh() is not state:
                continue
            is_planned = draft.is_plan_due()
            if is_planned:
                async with self._searching:
                    queues = await self._core.in_thread(partial(find_queues, self._store, self._key[0], draft.state))
                    await self._core.in_thread(partial(draft.plan, queues, self._rights))
            change = draft.change()
            if change is None:
                return results
            try:
                head = await self._core.in_thread(
                    partial(self._store.change_group, *self._key, state.head.version, change)
                )
            except StoreUnavailable as error:
                if error.outcome == "none":
                    raise
                head, is_in_doubt = None, True
            if head is not None:
                self.cache.adopt(replace(draft.state, head=head), began, is_own=True)
                self._counts["sessions_over"] += len(ended)
                if is_planned:
                    self._counts["plans"] += 1
                    self.unassigned = draft.unassigned
                return results
            self.cache.doubt()
            await asyncio.sleep(self._core.chance.random() * (self._core.boottime() - began))
        text = f"Group {self._key[1]!r} is being changed by others. Try again."
        raise StoreUnavailable(text, outcome="unknown") if is_in_doubt else StoreBusy(text)

    def _draft(self, state: GroupState, sessions: GroupSessions) -> GroupDraft:
        return draft_of(state, sessions, self._store.clock_difference)

    async def read_sessions(self) -> GroupSessions:
        """Reads the sessions of the group, after a sound clock."""
        began = self._core.boottime()
        sessions = await self._core.in_thread(partial(self._store.group_sessions, *self._key))
        if began >= self._sessions_read:
            self._sessions, self._sessions_read = sessions, began
        return sessions

    # What is done now and then

    def _wake_all(self) -> None:
        """Wakes waiting members for which a new state has something to do."""
        members, targets = self.cache.state.members, self.cache.targets
        is_planned, self._targets = targets is not self._targets, targets
        for number, beat in self._beats.items():
            owned = beat.content.owned
            is_moving = is_planned and (targets.missing(number, owned) or targets.foreign(number, owned))
            if is_moving or number not in members:
                _wake(beat)
        self._renewed = {number: seen for number, seen in self._renewed.items() if number in members}

    async def _follow(self) -> None:
        """Follows the group while it has members here."""
        self._counts["followed"] += 1
        while self._beats:
            pause = POLL
            try:
                pause = await self.turn()
            except QueueyError as error:
                logger.debug("group %s waits: %s", self._key[1], error)
            except Exception:
                logger.exception("work on group %s has failed; it is tried again", self._key[1])
            await asyncio.sleep(max(pause, self._counts["followed"] / MAX_POLLS))
        self._counts["followed"] -= 1
        self._following = None

    async def turn(self) -> float:
        """Does what is due; returns the seconds until the next turn."""
        now, state = self._core.boottime(), await self.cache.refresh()
        self._drop_silent(state, now)
        shortest = min((member.session for member in state.members.values()), default=0) / 3000
        is_read = now - self._sessions_read >= min(shortest, SEARCH)
        if is_read and self._draft(state, await self.read_sessions()).end_sessions():
            self.change(GroupDraft.is_plan_due)
        if now - self._rights_read >= RIGHTS:
            self._rights_read = now
            await self._check_rights(state)
        if self._sessions.clock - self._sessions.searched > SEARCH * 1000:
            await self._search(state)
        pause = QUICK_POLL if await self._hand_over_in_turn() else POLL
        due = self.cache.state.head.due
        if due is not None:  # The process that has asked for the plan comes first.
            left = (due + (0 if self.cache.is_own else LATE) - self._store.claim_now()) / 1000
            pause = min(pause, max(left, 0.0))
            if left <= 0:
                await self.change(GroupDraft.is_plan_due)
        return pause

    def _drop_silent(self, state: GroupState, now: float) -> None:
        """Forgets members without a heartbeat here for a session, and all if the group is served elsewhere."""
        for number, beat in list(self._beats.items()):
            member = state.members.get(number) if self._is_here(state) else None
            if member is None:
                _wake(beat)
            if member is None or (not beat.waits and now - beat.when > member.session / 1000):
                del self._beats[number]

    async def _check_rights(self, state: GroupState) -> None:
        """Removes members whose rights have changed or ended."""
        used = {member.subscription for member in state.members.values()}
        credentials = {slot: each.credential for slot, each in state.subscriptions.items() if slot in used}
        present = await self._core.in_thread(
            lambda: {slot: self._rights(credential) for slot, credential in credentials.items()}
        )
        changed = {slot for slot, credential in present.items() if credential != credentials[slot]}
        for member in state.members.values():
            if member.subscription in changed:
                self.change(partial(GroupDraft.remove, number=member.number))

    async def _search(self, state: GroupState) -> None:
        """Has a plan made if queues have come, gone or changed."""
        await self._core.in_thread(partial(self._store.note_search, *self._key, self._sessions.clock))
        self._sessions = replace(self._sessions, searched=self._sessions.clock)
        async with self._searching:
            queues = await self._core.in_thread(partial(find_queues, self._store, self._key[0], state))
            plan = await self._core.in_thread(partial(planned, state, queues))
        if plan.queues != state.plan:
            self._need_plan()

    async def _hand_over_in_turn(self) -> bool:
        """Hands over what members here are to own, in some queues a turn; returns whether any waits or gives back."""
        waiting = {number: self._unowned(number, beat) for number, beat in self._beats.items()}
        names = sorted(set().union(*waiting.values()))
        first = bisect_right(names, self._last_queue)
        some = (names[first:] + names[:first])[: max(1, MAX_QUEUES // max(1, self._counts["followed"]))]
        if some:
            self._last_queue = some[-1]
            await self.owners.settle_all(some, self.cache.tick())
            for number, missing in waiting.items():
                for name in missing.keys() & set(some):
                    await self._tell_or_ask(number, name, missing[name])
        return bool(names) or any(beat.waits and beat.told for beat in self._beats.values())

    def _unowned(self, number: int, beat: _Beat) -> dict[str, set[int]]:
        """Returns what is planned for a member, and is not known to be its own."""
        found = {}
        for name, numbers in self.cache.targets.missing(number, beat.content.owned).items():
            rows = self.owners.known(name) or {}
            if left := {n for n in numbers if n not in rows or rows[n].owner != number}:
                found[name] = left
        return found

    async def _tell_or_ask(self, number: int, name: str, numbers: set[int]) -> None:
        """Wakes a member that has got a partition, and asks owners for what it has waited for too long."""
        state, beat, planned = self.cache.state, self._beats.get(number), self.cache.targets.queues.get(name)
        if number not in state.members or beat is None or planned is None:
            return
        latest = self._store.claim_now() - state.members[number].session // 3
        for partition in sorted(numbers & planned.targets.keys()):
            row = (self.owners.known(name) or {}).get(partition)
            owner = state.members.get(row.owner) if row is not None else None
            if owner is not None and owner.number == number:
                _wake(beat)
            elif owner is not None and planned.targets[partition].epoch < latest:
                await self._ask(owner, planned.uid)

    async def _ask(self, owner: Member, uid: int) -> None:
        now = self._core.boottime()
        self._asked = {key: when for key, when in self._asked.items() if now - when < owner.session / 3000}
        if (owner.number, uid) not in self._asked:
            self._asked[owner.number, uid] = now
            ask = partial(self._store.ask_member, *self._key, owner.number, uid, owner.session)
            await self._core.in_thread(ask)

    async def end(self) -> None:
        """Ends its tasks."""
        tasks = [task for task in (self._changing, self._following) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def draft_of(state: GroupState, sessions: GroupSessions, slack: float) -> GroupDraft:
    """Returns a working copy of a state, by a clock that was sampled before the sessions were read.

    Args:
        state: Of the group.
        sessions: Of its members.
        slack: S, in seconds.
    """
    seen = {number: each.seen for number, each in sessions.members.items()}
    return GroupDraft(state, sessions.clock, round(slack * 1000), seen)


def digest_of(secret: str) -> bytes:
    """Returns what the state has of a member's id."""
    return sha256(secret.encode()).digest()


def _result(act: Act, draft: GroupDraft) -> Any:  # noqa: ANN401 - of the act
    try:
        return act(draft)
    except QueueyError as error:
        return error


def _settle(acts: Iterable[tuple[Act, asyncio.Future[Any]]], results: Iterable[Any]) -> None:
    for (_, done), result in zip(acts, results, strict=True):
        if done.done():
            continue
        if isinstance(result, Exception):
            done.set_exception(result)
        else:
            done.set_result(result)


def _wake(beat: _Beat) -> None:
    if beat.waiter is not None and beat.waits:
        beat.waiter.wake()
