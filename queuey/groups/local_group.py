"""A group in one process: its members' heartbeats, changes of its state, and periodic work."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from queuey.api.groups import Heartbeat, HeartbeatAnswer
from queuey.groups.hand_overs import HandOvers
from queuey.groups.heartbeat_answers import Rows, Targets, answer_heartbeat, find_highest_epoch, list_give_backs
from queuey.groups.rules.group_state import GroupState, JoinedMember
from queuey.groups.rules.state_draft import GroupDraft
from queuey.groups.state_cache import GroupContext, Moment, StateCache
from queuey.groups.state_changes import MAX_ATTEMPTS, MAX_STATE_AGE, StateChanges, clock_slack, make_draft
from queuey.model.errors import MemberGone, QueueyError, StoreUnavailable
from queuey.model.groups import ClockSample, OwnedOffset
from queuey.model.rights import MemberCredential
from queuey.runtime.waiters import Waiter

POLL_INTERVAL, QUICK_POLL_INTERVAL = 0.5, 0.2
"""Seconds between reads of the head; the second value applies while a member waits or has to give back partitions."""
MAX_POLLS = 200
"""Max reads of heads per second and process."""
SEARCH_INTERVAL = 15.0
"""Interval in seconds between searches for queues, by all processes together."""
RIGHTS_CHECK_INTERVAL = 1.0
"""Interval in seconds between checks of the members' rights."""
PLAN_OVERDUE_MS = 500
"""Timeout in milliseconds after which this process makes a plan that another process should have made."""
MAX_IDLE, MAX_IDLE_EMPTY = 60.0, 2.0
"""Seconds for which a group without heartbeats here is kept in memory, and a group that does not exist."""
MAX_QUEUES = 128
"""Max queues that the groups of a process read at a time because members wait for them."""
MAX_AT_ARRIVAL = 64
"""Max queues that a heartbeat reads because it names them, and because its member waits for partitions."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Beat:
    """The last heartbeat of a member that came to this process.

    Attributes:
        heartbeat: The heartbeat.
        waiter: Wakes the request, if it waits.
        clock: Sample of the clock at its arrival.
        moment: Its arrival among the moments of this process; rows that are read later have the notes that it needs.
        arrived: Boot time of its arrival.
        requested: What the last answer asked the member to give back.
    """

    heartbeat: Heartbeat
    waiter: Waiter | None
    clock: ClockSample
    moment: Moment
    arrived: float
    requested: frozenset[tuple[str, int, int]] = frozenset()

    @property
    def waits(self) -> bool:
        return self.waiter is not None and not self.waiter.closed


class LocalGroup:
    """A group in one process. Used in the loop's thread.

    Args:
        context: The group.

    Attributes:
        cache: The group's state.
        changes: Applies changes of the state.
        hand_overs: Hands its partitions over to their next owners.
        used: Boot time of the last request.
    """

    def __init__(self, context: GroupContext) -> None:
        self._store, self._core, self._key = context.store, context.core, context.key
        self._counts, self._announce, self._forget = context.counts, context.announce, context.forget
        self.cache = StateCache(context, self._on_state_changed)
        self.changes = StateChanges(context, self.cache)
        self.hand_overs = HandOvers(
            context, self.cache, self._find_unconfirmed, self.changes.request_plan, self._wake_owners
        )
        self._targets = self.cache.targets
        self.used = self._core.boottime()
        self._beats: dict[int, _Beat] = {}
        """The last heartbeat of each member, by its number."""
        self._background_work: asyncio.Task[None] | None = None
        self._waking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        """Set to end the pause before the next due work."""
        self._rights_read = -math.inf
        self._sessions_checked = -math.inf
        self._renewed: dict[int, int] = {}
        """When this process last renewed the session of each member (milliseconds since 1970)."""
        self._asked_until: dict[tuple[int, int], float] = {}
        """Boot time until which an owner is not asked again for a queue, by member and ``uid``."""
        self._last_queue = ""
        """The last queue that was read in turns because members wait."""

    @property
    def members(self) -> int:
        return len(self._beats)

    @property
    def is_needed(self) -> bool:
        max_idle = MAX_IDLE if self.cache.state.head.version else MAX_IDLE_EMPTY
        return bool(self._beats) or self._core.boottime() - self.used < max_idle

    # Members

    async def find_member(self, member_id: str, credential: MemberCredential) -> JoinedMember:
        """Returns a member by its id.

        Raises:
            MemberGone: The id is unknown, the member is absent, or it joined with another credential.
            GroupElsewhere: Another data centre serves the group.
        """
        for max_age in (MAX_STATE_AGE, 0.0):
            state = await self.cache.refresh(max_age)
            number, _, secret = member_id.partition("-")
            member = state.members.get(int(number)) if number.isdecimal() and len(number) < 20 else None  # noqa: PLR2004
            if (
                member is not None
                and hmac.compare_digest(member.digest, hash_secret(secret))
                and state.subscriptions[member.subscription].credential.id == credential.id
                and member.state != "absent"
                and self.cache.is_here
            ):
                return member
        self.cache.require_here()
        if not self.cache.state.head.version:
            self._forget()
        raise MemberGone

    def _find_last_seen_ms(self, member: JoinedMember) -> int:
        """Returns the latest of a member's joining and its renewals, as known here and in the store.

        After a move to this data centre, it is at least a third of a session after the move.
        """
        seen = self.changes.sessions.members.get(member.number)
        moved = self.cache.state.head.moved
        return max(
            member.joined,
            moved + member.session // 3 if moved else 0,
            0 if seen is None else seen.seen,
            self._renewed.get(member.number, 0),
        )

    async def require_session(self, member: JoinedMember) -> None:
        """Checks that the session of a member is not over, if the store can be read and no heartbeat came here.

        Raises:
            MemberGone: The session is over.
        """
        if member.number in self._beats:
            return
        with suppress(StoreUnavailable):  # A commit needs no clock: the store decides.
            if self._core.boottime() - self.changes.sessions_read > MAX_STATE_AGE:
                await self.changes.read_sessions()
            end = self._find_last_seen_ms(member) + member.session + clock_slack(self._store)
            if self.changes.sessions.clock > end:
                raise MemberGone

    async def heartbeat(
        self,
        member_id: str,
        credential: MemberCredential,
        heartbeat: Heartbeat,
        waiter: Waiter | None,
        *,
        must_answer: bool,
    ) -> HeartbeatAnswer | None:
        """Renews a member's session; returns its partitions to take and give back, or None if it may wait for news.

        A later heartbeat of the member takes the place of one that waits. With ``must_answer``, it is always answered.
        """
        clock, now = self._store.groups.sample_clock(), self._core.boottime()
        if find_highest_epoch(heartbeat) > self.cache.state.head.epoch:
            await self.cache.refresh()  # The later plan may have a queue that was deleted and made again.
        member = await self.find_member(member_id, credential)
        number = member.number
        previous = beat = self._beats.get(number)
        # A request that waits comes here again with its waiter, whenever it is woken.
        is_superseded = waiter is not None and waiter.closed  # The member has sent a later heartbeat.
        if is_new := beat is None or waiter is None or beat.waiter is not waiter:
            requested = frozenset[tuple[str, int, int]]() if beat is None else beat.requested
            beat = _Beat(heartbeat, waiter, clock, self.cache.next_moment(), now, requested)
        if is_new and not is_superseded:
            self._beats[number] = beat
            if previous is not None and previous.waiter is not None and previous.waits:
                previous.waiter.close()
                previous.waiter.wake()
            if self._background_work is None:
                self._background_work = self._core.spawn(self._work_in_background())
        try:
            member = await self._renew(member, beat, credential)
            answer = await self._answer(member, beat, is_new=is_new)
            to_return = list_give_backs(answer)
            is_last = must_answer or is_superseded or waiter is None or now - beat.arrived >= answer.wait
            if not is_last and not (answer.take or answer.lost or to_return - beat.requested):
                return None
            await self.cache.refresh(MAX_STATE_AGE, serial_age=answer.wait)
            self.cache.require_here()
            await self._store.groups.confirm_clock(beat.clock)
        except MemberGone:
            self._beats.pop(number, None)
            raise
        beat.requested, beat.waiter = to_return, None
        return answer

    async def _renew(self, member: JoinedMember, beat: _Beat, credential: MemberCredential) -> JoinedMember:
        """Renews the session once a third is over, unless the member is late in giving back; updates its state.

        Removes the member if its credential has another caller now. Raises ``MemberGone`` then, or if its session is
        over.
        """
        number = member.number
        subscription = self.cache.state.subscriptions[member.subscription]
        if subscription.credential.caller != credential.caller:
            await self.changes.apply(partial(GroupDraft.leave, number=number))
            raise MemberGone
        now = self._store.clock.now_ms()
        if now >= self._find_last_seen_ms(member) + member.session:
            await self.changes.read_sessions()
            if now >= self._find_last_seen_ms(member) + member.session:
                raise MemberGone
        if now - self._find_last_seen_ms(member) >= member.session // 3:
            is_overdue = partial(self._is_overdue, member, beat, now)
            if not await self._core.compute(self._count_queues(number, beat), is_overdue):
                renewed = await self._store.groups.renew_session(*self._key, number, member.session)
                self._renewed[number] = max(renewed, self._renewed.get(number, 0))
        if beat.heartbeat.leaving and member.state in {"new", "present"}:
            await self.changes.apply(partial(GroupDraft.drain, number=number))
        elif member.state == "new":
            await self.changes.apply(partial(GroupDraft.make_present, number=number))
        present = self.cache.state.members.get(number)
        if present is None:
            raise MemberGone
        return present

    def _is_overdue(self, member: JoinedMember, beat: _Beat, now: int) -> bool:
        """Returns whether a member is late in giving back partitions that it names, or owns and was asked for."""
        held = {name: dict(epochs) for name, epochs in beat.heartbeat.owned.items()}
        for name in self._requested_queues(member.number):
            for partition, row in (self.hand_overs.find_rows(name) or {}).items():
                if row.owner == member.number and partition not in beat.heartbeat.given_back.get(name, {}):
                    held.setdefault(name, {})[partition] = row.epoch
        return self.cache.targets.is_overdue(member, held, now - clock_slack(self._store))

    def _count_queues(self, number: int, beat: _Beat) -> int:
        return self.cache.targets.count_queues(number) + len(beat.heartbeat.owned) + len(beat.heartbeat.given_back)

    def _requested_queues(self, number: int) -> set[str]:
        seen = self.changes.sessions.members.get(number)
        plan = self.cache.state.plan
        return {plan[uid].name for uid in seen.asked if uid in plan} if seen is not None else set()

    async def _answer(self, member: JoinedMember, beat: _Beat, *, is_new: bool) -> HeartbeatAnswer:
        """Hands over partitions of the queues that a heartbeat concerns, and compares their rows with it.

        Carries out give-backs only if ``is_new``. Reads up to ``MAX_AT_ARRIVAL`` queues that the member names, and as
        many in which it misses partitions; the answer leaves out queues that were not read.
        """
        number, given_back = member.number, beat.heartbeat.given_back
        if is_new and given_back:
            give_backs = {
                name: {n: (number, epoch) for n, epoch in epochs.items()} for name, epochs in given_back.items()
            }
            await self.hand_overs.hand_over_queues(give_backs, beat.moment, give_backs)
        for _ in range(MAX_ATTEMPTS):
            targets, since = self.cache.targets, max(beat.moment, self.cache.targets_since)
            count = self._count_queues(number, beat)
            names, *unread_queues = await self._core.compute(count, partial(self._find_concerned, number, beat, since))
            for unread in unread_queues:  # Others are read in turns while it waits, or for its next heartbeat.
                batch = self._core.rng.sample(unread, min(MAX_AT_ARRIVAL, len(unread)))
                await self.hand_overs.hand_over_queues(batch, since)
            if targets is self.cache.targets:
                break
        return await self._core.compute(count, partial(self._make_answer, member, beat, targets, names, since))

    def _find_concerned(self, number: int, beat: _Beat, since: Moment) -> tuple[list[str], list[str], list[str]]:
        """Returns the queues that a heartbeat concerns, by name, and those of which no rows since a moment are known.

        First such queues that the member names or is asked for, then those in which it misses partitions.
        """
        targets, owned = self.cache.targets, beat.heartbeat.owned
        named = self._requested_queues(number).union(targets.find_foreign(number, owned), beat.heartbeat.given_back)
        missing = set(targets.find_missing(number, owned)) - named
        unread = [
            {name for name in names if self.hand_overs.find_rows(name, since) is None} for names in (named, missing)
        ]
        return sorted(named | missing), sorted(unread[0]), sorted(unread[1])

    def _make_answer(
        self, member: JoinedMember, beat: _Beat, targets: Targets, names: Iterable[str], since: Moment
    ) -> HeartbeatAnswer:
        rows_by_name = {name: self.hand_overs.find_rows(name, since) for name in names}
        rows = {name: recorded for name, recorded in rows_by_name.items() if recorded is not None}
        return answer_heartbeat(
            targets, member, beat.heartbeat, rows, seen=self._find_last_seen_ms(member), now=beat.clock.now
        )

    async def leave(self, member_id: str, credential: MemberCredential, *, returns: bool, is_own_request: bool) -> None:
        """Removes a member. By its own request and from its own caller, its partitions count as given back.

        With ``returns``, its targets are kept until its instance joins again.
        """
        member = await self.find_member(member_id, credential)
        number = member.number
        beat = self._beats.pop(number, None)
        names = self.cache.targets.find_queues(number).union(beat.heartbeat.owned if beat is not None else ())
        if (
            is_own_request
            and self.cache.state.subscriptions[member.subscription].credential.caller == credential.caller
        ):
            # Its partitions count as given back, whichever process hands them over; as lost if its rights changed.
            self.hand_overs.leavers.add(number)
        try:
            await self.changes.apply(partial(GroupDraft.leave, number=number, returns=returns))
            with suppress(QueueyError):
                await self.hand_overs.hand_over_queues(names, self.cache.next_moment())
        finally:
            self.hand_overs.leavers.discard(number)

    def _find_unconfirmed(self, name: str) -> set[int]:
        planned = self.cache.targets.queues.get(name)
        return {
            number
            for number, target in (planned.targets.items() if planned is not None else ())
            if (beat := self._beats.get(target.member)) is not None
            and beat.heartbeat.owned.get(name, {}).get(number, 0) < target.epoch
        }

    # Periodic work

    def _on_state_changed(self) -> None:
        members, targets = self.cache.state.members, self.cache.targets
        is_planned, self._targets = targets is not self._targets, targets
        if self.cache.is_own and is_planned:
            self._announce()
        elif self.cache.is_own and self.cache.state.head.due is not None:
            self.work_now()
        beats = list(self._beats.items())
        for number, beat in beats:
            if number not in members:
                _wake(beat)
        if is_planned and beats:
            self._waking = self._core.spawn(self._wake_moving(beats, targets))
        self._renewed = {number: seen for number, seen in self._renewed.items() if number in members}

    async def _wake_moving(self, beats: Iterable[tuple[int, _Beat]], targets: Targets) -> None:
        moving: dict[int, _Beat] = {}
        queues = (
            (number, beat)
            for number, beat in beats
            for find in (targets.find_missing, targets.find_foreign)
            for _ in find(number, beat.heartbeat.owned)
        )
        await self._core.for_each(queues, lambda item: moving.update([item]))
        for beat in moving.values():
            _wake(beat)

    def _wake_owners(self, name: str, rows: Rows, moved: Iterable[OwnedOffset]) -> None:
        """Wakes owners here that do not name their partition yet, unless they were asked to give it back.

        If a row in ``moved`` now belongs to a member elsewhere, also announces that to other workers.
        """
        for row in rows.values():
            beat = self._beats.get(row.owner)
            if beat is None or (name, row.partition, row.epoch) in beat.requested:
                continue
            if beat.heartbeat.owned.get(name, {}).get(row.partition) != row.epoch:
                _wake(beat)
        if any(row.owner and row.owner not in self._beats for row in moved):
            self._announce()

    def work_now(self) -> None:
        self._news.set()

    async def _work_in_background(self) -> None:
        """Does due work again and again while members send heartbeats here; logs errors and tries again."""
        self._counts["at work"] += 1
        while self._beats:
            self._news.clear()
            pause = POLL_INTERVAL
            try:
                pause = await self.do_due_work()
            except QueueyError as error:
                logger.debug("group %s waits: %s", self._key[1], error)
            except Exception:
                logger.exception("work on group %s has failed and will be retried", self._key[1])
            await asyncio.sleep(self._counts["at work"] / MAX_POLLS)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):  # Not wait_for, which may swallow the cancellation of the task.
                    await self._news.wait()
        self._counts["at work"] -= 1
        self._background_work = None

    async def do_due_work(self) -> float:
        """Does the work that is due; returns the seconds until the next time.

        Drops silent members, ends sessions, removes members with changed rights, searches queues, hands partitions
        over, and makes a plan that is due.
        """
        now, state = self._core.boottime(), await self.cache.refresh()
        self._drop_silent(state, now)
        shortest = min((member.session for member in state.members.values()), default=0) / 3000
        # Counted from the last check, not the last read: requests that show the group read the sessions, too.
        if now - self._sessions_checked >= min(shortest, SEARCH_INTERVAL):
            if make_draft(state, await self.changes.read_sessions(), clock_slack(self._store)).end_sessions():
                self.changes.apply_due()
            self._sessions_checked = now
        if now - self._rights_read >= RIGHTS_CHECK_INTERVAL:
            self._rights_read = now
            await self.changes.remove_members_with_changed_rights(state)
        if self.changes.sessions.clock - self.changes.sessions.searched > SEARCH_INTERVAL * 1000:
            await self.changes.search(state)
        pause = QUICK_POLL_INTERVAL if await self._hand_over_in_turn() else POLL_INTERVAL
        due = self.cache.state.head.due
        if due is not None:  # The process that requested the plan makes it first.
            remaining = (due + (0 if self.cache.is_own else PLAN_OVERDUE_MS) - self._store.clock.now_ms()) / 1000
            pause = min(pause, max(remaining, 0.0))
            if remaining <= 0:
                await self.changes.apply_due()
        return pause

    def _drop_silent(self, state: GroupState, now: float) -> None:
        """Drops members without a heartbeat here for a session, and all of them if the group is served elsewhere.

        Wakes members that have waited for a third of their session, so that they get an answer.
        """
        for number, beat in list(self._beats.items()):
            member = state.members.get(number) if self.cache.is_here else None
            if member is None or now - beat.arrived >= member.session / 3000:
                _wake(beat)
            if member is None or (not beat.waits and now - beat.arrived > member.session / 1000):
                del self._beats[number]

    async def _hand_over_in_turn(self) -> bool:
        """Hands over partitions of some queues to members here; returns whether any member waits or gives back.

        Wakes members that own a missing partition by now, and asks owners elsewhere to give theirs back.
        """
        waiting: defaultdict[int, dict[str, set[int]]] = defaultdict(dict)
        targets, beats = self.cache.targets, list(self._beats.items())

        def add_waiting(item: tuple[int, _Beat, str]) -> None:
            number, beat, name = item
            rows = self.hand_overs.find_rows(name) or {}
            missing = targets.find_missing_in(number, name, beat.heartbeat.owned)
            if unowned := {n for n in missing if n not in rows or rows[n].owner != number}:
                waiting[number][name] = unowned

        queues = ((n, beat, name) for n, beat in beats for name in targets.find_missing(n, beat.heartbeat.owned))
        await self._core.for_each(queues, add_waiting)
        names = sorted(set().union(*waiting.values()))
        first = bisect_right(names, self._last_queue)
        batch = (names[first:] + names[:first])[: max(1, MAX_QUEUES // max(1, self._counts["at work"]))]
        if batch:
            self._last_queue = batch[-1]
            await self.hand_overs.hand_over_queues(batch, self.cache.next_moment())
            now, settled = self._core.boottime(), set(batch)
            self._asked_until = {key: until for key, until in self._asked_until.items() if until > now}
            for number, missing in waiting.items():
                for name in sorted(missing.keys() & settled):
                    await self._wake_or_request(number, name, missing[name])
                await asyncio.sleep(0)
        return bool(names) or any(beat.waits and beat.requested for beat in self._beats.values())

    async def _wake_or_request(self, number: int, name: str, numbers: set[int]) -> None:
        """Wakes the member if it owns one of these by now; asks other owners if the plan is old enough."""
        state, beat, planned = self.cache.state, self._beats.get(number), self.cache.targets.queues.get(name)
        if number not in state.members or beat is None or planned is None:
            return
        latest = self._store.clock.now_ms() - state.members[number].session // 3
        rows = self.hand_overs.find_rows(name) or {}
        owners = {partition: rows[partition].owner for partition in numbers & planned.targets.keys() & rows.keys()}
        late = {owner for partition, owner in owners.items() if planned.targets[partition].epoch < latest}
        if number in owners.values():
            _wake(beat)
        for owner in sorted(late & state.members.keys() - {number}):  # Each at most once in a third of its session.
            key, session, now = (owner, planned.uid), state.members[owner].session, self._core.boottime()
            if self._asked_until.get(key, 0.0) <= now:
                await self._store.groups.ask_member(*self._key, *key, session)
                self._asked_until[key] = now + session / 3000

    async def cancel_tasks(self) -> None:
        tasks = [task for task in (self.changes.task, self._background_work, self._waking) if task and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def hash_secret(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _wake(beat: _Beat) -> None:
    if beat.waiter is not None and beat.waits:
        beat.waiter.wake()
