"""Use case: explain why a message is not read or claimed, yet or any more, and what readers of a queue see now.

An explanation rests on what was looked at, and on nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from queuey import ids
from queuey.api.claims import DEFAULT_COUNTED, Backlog, ClaimCounts, backlog_text
from queuey.api.messages import Code, Explanation, Reason
from queuey.api.progress import Offsets
from queuey.api.queues import PartitionExplanation, PartitionInfo, QueueExplanation, QueueInfo
from queuey.claims.places import limited_key_of
from queuey.claims.state import State
from queuey.errors import ClaimsRefused, GroupNotFound
from queuey.ids import Position
from queuey.messages import MAX_TTL, Message, Queue, Slice
from queuey.service.claims import ClaimUseCases
from queuey.service.claims.attempts import Attempts
from queuey.service.limits import Limits
from queuey.service.offsets import OffsetUseCases
from queuey.service.queue_access import QueueAccess
from queuey.service.queues import Queues
from queuey.storage import Store, bridge
from queuey.terminal.texts import plural
from queuey.time_parsing import clock_warning, iso, length
from queuey.titles import id_time

MOST_SHOWN = 10
"""Max partitions in which one id is looked at closely: only PUT and Spark make messages with one id in several of
them."""

MAX_GROUPS = 20
"""Max consumer groups whose lag is shown."""
MAX_LAGS = 400
"""Max partitions, over all groups, whose lag is counted."""
_KINDS = {
    "dedup": "Of messages with equal bodies that wait to be claimed one is delivered.",
    "ordered": "Messages of one key are claimed one after another.",
}
_NO_TRACE = (
    "What else explains it leaves no trace: a delete by id, a purge, a post that was answered with outcome none, "
    "another queue."
)


class Explaining:
    """Looks at a message: as it is stored, as range reads show it, and as the claim log knows it."""

    def __init__(
        self, store: Store, limits: Limits, queues: Queues, claims: ClaimUseCases, offsets: OffsetUseCases
    ) -> None:
        self._store = store
        self._limits = limits
        self._queues = queues
        self._claims = claims
        self._offsets = offsets

    def explain(self, access: QueueAccess, position: Position, partition: int | None) -> Explanation:
        """Explains a message; waits for the claim logs of its partitions. ``partition`` None: it may be in any."""
        return access.use(lambda queue: self._explain(queue, position, partition))

    def _explain(self, queue: Queue, position: Position, partition: int | None) -> Explanation:
        if partition is not None and not 1 <= partition <= queue.partitions:
            text = f"The queue has no partition {partition}, only 1 to {queue.partitions}."
            reason = Reason(code="no_partition", text=text, partition=partition)
            return _explanation(position, [reason])
        numbers = range(1, queue.partitions + 1) if partition is None else [partition]
        found = self._find(queue, numbers, position)
        if not found:
            reasons = [*self._absence(queue, numbers, position), *self._traces(queue, numbers, position)]
            reasons.append(Reason(code="no_trace", text=_NO_TRACE))
            return _explanation(position, reasons)
        shown = {number: self._shows(queue, number, position) for number in found}
        reasons = []
        for number, message in found.items():
            expires = message.expires
            reasons += self._reading(queue, number, position, shown=shown[number])
            text = f"It expires at {_moment(expires)}."
            reasons.append(Reason(code="expires", text=text, partition=number, at=ids.ticks_to_seconds(expires)))
        reasons += self._claiming(queue, found, position)
        if (warning := clock_warning(bridge.run(self._store.ledger.ids_ahead()))) is not None:
            reasons.append(Reason(code="ahead", text=warning))
        return _explanation(position, reasons, stored=True, readable=any(shown.values()))

    def _find(self, queue: Queue, numbers: Sequence[int], position: Position) -> dict[int, Message]:
        """Returns the message by the partitions in which it is stored."""
        step = max(1, self._limits.page_bytes // self._limits.longest)
        found: dict[int, Message] = {}
        for at in range(0, len(numbers), step):
            some: list[Message] = bridge.run(
                self._store.messages.fetch(queue, [(number, position) for number in numbers[at : at + step]])
            )
            found.update((message.partition, message) for message in some)
            if len(found) >= MOST_SHOWN:
                break
        return dict(list(found.items())[:MOST_SHOWN])

    def _shows(self, queue: Queue, number: int, position: Position) -> bool:
        """Reads the message's range and returns whether it is there."""
        part = Slice(number, position, ids.following(position), limit=1, max_bytes=1)
        [page] = bridge.run(self._store.messages.read(queue, [part]))
        return bool(page.messages)

    # A queue

    def explain_queue(
        self, access: QueueAccess, *, most_counted: int = DEFAULT_COUNTED, most_groups: int = MAX_GROUPS
    ) -> QueueExplanation:
        """Explains what readers of a queue see now.

        Args:
            access: The queue.
            most_counted: Max messages of the backlog that are counted; more are estimated.
            most_groups: Max groups whose lag is told; 0: groups are left out.
        """
        info = self._queues.describe(access)
        counts, backlog, refusal = None, None, None
        try:
            counts, backlog = self._claims.counts(access), self._claims.backlog(access, most_counted)
        except ClaimsRefused as error:
            refusal = str(error)
        names = self._offsets.groups(access) if most_groups else []
        groups = self._groups(access, names[: max(1, min(most_groups, MAX_LAGS // info.partitions))])
        sentences = [*_of_queue(info), *_of_claims(info, backlog, refusal)]
        sentences += [f"Group {group.group} has {plural(group.lag, 'message')} left." for group in groups]
        if warning := clock_warning(bridge.run(self._store.ledger.ids_ahead())):
            sentences.append(warning)
        if len(names) > len(groups):
            sentences.append(f"{plural(len(names) - len(groups), 'more group has', 'more groups have')} offsets.")
        return QueueExplanation(
            sentences=tuple(sentences),
            queue=info,
            claims=counts,
            backlog=backlog,
            claims_refused=refusal,
            groups=groups,
            partitions={number: _partition(info, number, part, counts) for number, part in info.partition_info.items()},
        )

    def _groups(self, access: QueueAccess, names: list[str]) -> tuple[Offsets, ...]:
        groups = []
        for name in names:
            with suppress(GroupNotFound):  # Somebody has forgotten it meanwhile.
                groups.append(self._offsets.progress(access, name))
        return tuple(groups)

    # A message that is stored

    def _reading(self, queue: Queue, number: int, position: Position, *, shown: bool) -> Iterator[Reason]:
        delay = self._store.read_delay(queue)
        at = ids.ticks_to_seconds(position[0]) + delay
        behind = f" Range reads stay {length(delay)} behind the clock and show it from {iso(at)} on." if delay else ""
        if shown:
            yield Reason(code="readable", text="Range reads show it.", partition=number)
        elif position[0] > bridge.run(self._store.ledger.now()):
            text = f"It is delayed: it is due at {_moment(position[0])}.{behind}"
            yield Reason(code="delayed", text=text, partition=number, at=ids.ticks_to_seconds(position[0]))
        else:
            text = behind.strip() or "Range reads do not show it yet."
            yield Reason(code="read_delay", text=text, partition=number, at=at)

    def _claiming(self, queue: Queue, found: Mapping[int, Message], position: Position) -> Iterator[Reason]:
        if (refusal := self._store.claim_logs.claims_refusal(queue)) is not None:
            yield Reason(code="not_claimable", text=f"It cannot be claimed: {refusal}")
            yield from self._doubt(queue)
            return
        if queue.claims == "paused":
            yield Reason(code="paused", text="Claims of this queue are paused: nobody gets a message of it.")
        for number, standing in self._standings(queue, list(found), position).items():
            yield from _of_stored(standing, number)
            yield from self._limits_of(queue, found[number], standing)
            yield from self._deliveries(queue, number, position, standing)
        if queue.kind == "dedup":
            text = "This is a dedup queue: of messages with equal bodies that wait one is delivered, perhaps another."
            yield Reason(code="duplicates", text=text)
        if queue.kind == "ordered":
            text = "This is an ordered queue: a message is delivered when all earlier ones of its key are done."
            yield Reason(code="order", text=text)

    def _limits_of(self, queue: Queue, message: Message, standing: _Standing) -> Iterator[Reason]:
        number, share, of_key = message.partition, queue.share_of(message.partition), queue.max_claimed_per_key
        key = limited_key_of(message) if of_key else 0
        waits = standing.code in {"waiting", "unclaimed", None} and not standing.passed
        if not waits or not (share or key):
            return

        def count(state: State, expired: int) -> tuple[int, int]:
            return state.live(expired) if share else 0, state.live_of(expired, key) if key else 0

        claimed, claimed_of_key = self._claims.core.run(self._claims.look_at(queue, count, [number]))[number]
        if key and claimed_of_key >= of_key:
            text = f"It waits for its key, of which {claimed_of_key} are claimed: max_claimed_per_key is {of_key}."
            yield Reason(code="limits", text=text, partition=number)
        if share and claimed >= share:
            text = (
                f"It waits for its partition, of which {claimed} are claimed: that may have {share} of the "
                f"queue's max_claimed {queue.max_claimed}."
            )
            yield Reason(code="limits", text=text, partition=number)

    def _deliveries(self, queue: Queue, number: int, position: Position, standing: _Standing) -> Iterator[Reason]:
        known = bridge.run(Attempts(self._store.ledger).of(queue, number, [position])).get(position)
        if known is None:
            return
        for one in known.attempts:
            by, why = f" by {one.worker}" if one.worker else "", f": {one.text}" if one.text else ""
            text = f"An attempt{by} failed at {iso(one.at)}: {one.error}{why}"
            yield Reason(code="attempt", text=text, partition=number, at=one.at)
        state = known.state
        if state is not None and state.number in {standing.number, *(one.number for one in known.attempts)}:
            text = f"At {iso(state.at)} its worker said: {state.json.decode()}"
            yield Reason(code="state", text=text, partition=number, at=state.at)

    def _standings(self, queue: Queue, numbers: Sequence[int], position: Position) -> dict[int, _Standing]:
        return self._claims.core.run(self._claims.look_at(queue, partial(_standing, position), numbers))

    # A message that is not stored

    def _absence(self, queue: Queue, numbers: Sequence[int], position: Position) -> Iterator[Reason]:
        where = f"partition {numbers[0]}" if len(numbers) == 1 else f"partitions {numbers[0]} to {numbers[-1]}"
        yield Reason(code="absent", text=f"No message with this id is stored in {where}.")
        made, now = ids.ticks_to_seconds(position[0]), ids.ticks_to_seconds(bridge.run(self._store.ledger.now()))
        ttl = self._limits.default_ttl if queue.ttl is None else queue.ttl
        if made > now:
            text = f"The time of the id lies ahead ({iso(made)}): only a delayed message or a PUT can have it."
            yield Reason(code="ahead", text=text, at=made)
        elif made < queue.created - self._store.clock_difference:  # Another clock may have said when it was created.
            text = f"The id is from {iso(made)}, the queue was created at {iso(queue.created)}."
            yield Reason(code="older_than_queue", text=text, at=queue.created)
        if made + MAX_TTL < now:
            text = "The id is older than any message can become (388 days), if it was not put there later."
            yield Reason(code="expired", text=text, at=made + MAX_TTL)
        elif made + ttl < now:
            text = (
                f"With the queue's TTL of {length(ttl)} it has expired at {iso(made + ttl)}. A message may have a TTL "
                "of its own."
            )
            yield Reason(code="expired", text=text, at=made + ttl)
        yield from self._doubt(queue)

    def _doubt(self, queue: Queue) -> Iterator[Reason]:
        """Warns where one read proves nothing about others."""
        if self._store.claim_logs.claims_refusal(queue) is not None:
            text = (
                f"At consistency {queue.consistency} a read need not meet every acknowledged write: others, here or in "
                "another data centre, may see this message or miss it."
            )
            yield Reason(code="not_proven", text=text)

    def _traces(self, queue: Queue, numbers: Sequence[int], position: Position) -> Iterator[Reason]:
        if self._store.claim_logs.claims_refusal(queue) is None:
            for number, standing in self._standings(queue, numbers, position).items():
                yield from _of_absent(standing, number)
                yield from self._deliveries(queue, number, position, standing)


class _Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A message in one claim log.

    Attributes:
        code: None: the log has no entry at all.
        passed: Claims have passed its id, and it is not outstanding.
        deliveries: How often it was delivered, if that is still known.
        expires: End of its claim (seconds since 1970); 0: not known.
        target: The queue in which it is about to become a dead letter.
        worker: Name of the caller that has it, or had it last; blank: none.
        number: The log entry of the last delivery; 0: it is not outstanding.
        cancelled: An operator has cancelled it while it was claimed.
    """

    code: Code | None
    passed: bool = False
    deliveries: int = 0
    expires: float = 0.0
    target: str = ""
    worker: str = ""
    number: int = 0
    cancelled: bool = False


def _explanation(
    position: Position, reasons: list[Reason], *, stored: bool = False, readable: bool = False
) -> Explanation:
    timestamp = ids.timestamp_text(position[0])
    return Explanation(
        id=ids.to_hex(position), timestamp=timestamp, stored=stored, readable=readable, reasons=tuple(reasons)
    )


def _standing(position: Position, state: State, expired: int) -> _Standing:
    """Looks a message up in a state; claims that expire before ``expired`` are over (milliseconds since 1970)."""
    if (claim := state.outstanding.get(position)) is not None:
        return _Standing(
            code=state.standing(position, expired),
            deliveries=claim.deliveries,
            expires=claim.expires / 1000,
            worker=claim.worker,
            number=claim.number,
            cancelled=position in state.cancelled,
        )
    if position in state.outbox and state.outbox[position][0]:
        target, deliveries = state.outbox[position]
        return _Standing(code="dead_letter", deliveries=deliveries, target=target)
    if state.move is not None and any(position == taken for taken, _ in state.move.taken):
        return _Standing(code="moved")
    if position in state.superseded:
        return _Standing(code="superseded")
    if position in state.above or any(position in some for some in state.pending_deletes.values()):
        return _Standing(code="done")
    return _Standing(code="unclaimed" if state.number else None, passed=state.is_done(position))


def _of_stored(standing: _Standing, number: int) -> Iterator[Reason]:
    """Yields the reasons for a message that is stored."""
    if standing.code == "done" or standing.passed:
        text = (
            "It is not delivered to claims again: it was acknowledged, became a dead letter, was moved or removed, or "
            "was put at an id that claims had passed. Range reads do not depend on that."
        )
        yield Reason(code="done", text=text, partition=number)
    elif standing.code == "unclaimed":
        yield Reason(code="unclaimed", text="No claim has got it yet.", partition=number)
    else:
        yield from _noted(standing, number)


def _of_absent(standing: _Standing, number: int) -> Iterator[Reason]:
    """Yields the reasons for a message that is not stored. That claims have passed its id means nothing then."""
    if standing.code == "done":
        text = f"The claim log of partition {number} has it as done: acknowledged, moved or removed."
        yield Reason(code="done", text=text, partition=number)
    elif standing.code != "unclaimed":
        yield from _noted(standing, number)


def _noted(standing: _Standing, number: int) -> Iterator[Reason]:
    times = f"{standing.deliveries} time{'' if standing.deliveries == 1 else 's'}"
    match standing.code:
        case "claimed":
            whom = f"By {standing.worker}." if standing.worker else "The worker gave no name."
            text = f"It is claimed until {iso(standing.expires)}, delivered {times}. {whom}"
            text += " It is cancelled: its worker is asked to stop, and no claim gets it again." * standing.cancelled
            yield Reason(code="claimed", text=text, partition=number, at=standing.expires)
        case "retrying":
            text = f"It was delivered {times}, and released: claims get it from {iso(standing.expires)} on."
            yield Reason(code="retrying", text=text, partition=number, at=standing.expires)
        case "waiting" if standing.cancelled:
            text = f"It was delivered {times}, and cancelled: no claim gets it again."
            yield Reason(code="waiting", text=text, partition=number, at=standing.expires or None)
        case "waiting" if not standing.deliveries:
            text = "No claim has got it yet, and one of the next claims gets it, even before it is due."
            yield Reason(code="waiting", text=text, partition=number)
        case "waiting":
            text = f"It was delivered {times}, and its last claim has ended: one of the next claims gets it."
            yield Reason(code="waiting", text=text, partition=number, at=standing.expires or None)
        case "dead_letter":
            text = f"It was delivered {times} and is about to become a dead letter in queue {standing.target!r}."
            yield Reason(code="dead_letter", text=text, partition=number)
        case "superseded":
            text = "It was delivered, and then became a dead letter, was moved, or lost its name to a newer message."
            yield Reason(code="superseded", text=text, partition=number)
        case "moved":
            yield Reason(code="moved", text="A move to another queue has taken it.", partition=number)
        case _:
            return


def _moment(ticks: int) -> str:
    return iso(ids.ticks_to_seconds(ticks))


def _of_queue(info: QueueInfo) -> Iterator[str]:
    yield f"Queue {info.name} of {info.application}: {plural(info.partitions, 'partition')}, {info.type}."
    yield f"Consistency {info.consistency}, store {info.store}, created {iso(info.created)}."
    yield f"Messages live {length(info.ttl)}, unless one has a TTL of its own."
    if info.read_delay:
        behind = f"Range reads stay {length(info.read_delay)} behind the clock"
        yield f"{behind}: they show what is older than {id_time(info.horizon)}."
    else:
        yield "Range reads show a message as soon as it is stored, or due."
    if info.principals:
        yield f"Only these may read it, delete in it or claim from it: {', '.join(info.principals)}."


def _of_claims(info: QueueInfo, backlog: Backlog | None, refusal: str | None) -> Iterator[str]:
    yield from _of_ends(info, refusal)
    if info.claims == "paused":
        yield "Its claims are paused: nobody gets a message until they are open again."
    if backlog is not None:
        yield f"For claims: {backlog_text(backlog, time.time())}."
    if info.on_ack == "delete":
        yield "Acknowledged messages are deleted."
    if info.kind in _KINDS:
        yield _KINDS[info.kind]
    if info.max_claimed:
        yield f"At most {info.max_claimed} are claimed at once, divided among the partitions."
    if info.max_claimed_per_key:
        yield f"At most {info.max_claimed_per_key} of one key are claimed at once."


def _of_ends(info: QueueInfo, refusal: str | None) -> Iterator[str]:
    """Yields what becomes of messages that are not done, and what is kept of those that are."""
    if refusal is not None:
        yield f"It cannot be claimed from: {refusal}"
    elif info.max_deliveries:
        dead = f"After {plural(info.max_deliveries, 'delivery', 'deliveries')} without an acknowledgement"
        yield f"{dead} a message becomes a dead letter in {info.dead_letter}."
    if info.on_expiry == "dead-letter":
        yield f"Expired messages without a TTL of their own become dead letters in {info.dead_letter}."
    if info.result_ttl:
        yield f"Results of its jobs are kept for {length(info.result_ttl)}."


def _partition(info: QueueInfo, number: int, stored: PartitionInfo, counts: ClaimCounts | None) -> PartitionExplanation:
    claims = None if counts is None else counts.partitions.get(number)
    return PartitionExplanation(
        count=stored.count,
        exact=stored.exact,
        oldest=stored.oldest,
        newest=stored.newest,
        shown=_shown(info, stored),
        claimed=None if claims is None else claims.claimed,
        waiting=None if claims is None else claims.waiting,
        retrying=None if claims is None else claims.retrying,
    )


def _shown(info: QueueInfo, stored: PartitionInfo) -> str:
    """Describes how much of a partition range reads show now."""
    if stored.oldest is None or stored.newest is None:
        return "nothing: it is empty"
    horizon, newest = ids.parse_position(info.horizon)[0], ids.parse_position(stored.newest)[0]
    if newest < horizon:
        return "all"
    at = iso(ids.ticks_to_seconds(newest) + info.read_delay)
    return f"{'nothing' if ids.parse_position(stored.oldest)[0] >= horizon else 'a part'}, all from {at} on"
