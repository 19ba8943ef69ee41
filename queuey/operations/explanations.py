"""Use case: explain why a message cannot be read or claimed now, and what readers of a queue see.

An explanation states only what was read from the store.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from queuey.access.queue_access import QueueAccess
from queuey.api.claims import DEFAULT_COUNTED, Backlog, ClaimCounts, backlog_text
from queuey.api.messages import Code, Explanation, Reason
from queuey.api.progress import Offsets
from queuey.api.queues import PartitionExplanation, PartitionInfo, QueueExplanation, QueueInfo
from queuey.claims.claims import ClaimUseCases
from queuey.claims.job_records import JobRecords
from queuey.claims.rules.kinds.limited import compute_limited_key_digest
from queuey.claims.rules.partition_state import State
from queuey.groups.offsets import OffsetUseCases
from queuey.model import ids
from queuey.model.errors import ClaimsRefused, GroupNotFound
from queuey.model.ids import Position
from queuey.model.kinds import kind_of
from queuey.model.messages import MAX_TTL, Message, Queue, Slice
from queuey.model.texts import format_count
from queuey.model.time_parsing import clock_warning, format_duration, format_instant
from queuey.model.titles import id_time
from queuey.queues.queues import Queues
from queuey.runtime.limits import Limits
from queuey.storage import Store

MAX_EXPLAINED_PARTITIONS = 10
"""Max partitions in which one id is explained. Only PUT and Spark store messages with one id in several partitions."""

MAX_GROUPS = 20
MAX_LAGS = 400
"""Max partitions whose lag is counted, over all groups."""
_NO_TRACE_TEXT = (
    "Other explanations leave no trace: a delete by id, a purge, a post that failed with outcome none, a message of "
    "another queue."
)


class Explaining:
    """Explains messages by the stored message, by range reads and by the claim log."""

    def __init__(
        self, store: Store, limits: Limits, queues: Queues, claims: ClaimUseCases, offsets: OffsetUseCases
    ) -> None:
        self._store = store
        self._limits = limits
        self._queues = queues
        self._claims = claims
        self._offsets = offsets

    async def explain(self, access: QueueAccess, position: Position, partition: int | None) -> Explanation:
        """Explains a message of one partition, or of any if ``partition`` is None.

        A partition that the queue does not have is explained, too.
        """
        return await access.apply(partial(self._explain, position=position, partition=partition))

    async def _explain(self, queue: Queue, position: Position, partition: int | None) -> Explanation:
        if partition is not None and not 1 <= partition <= queue.partitions:
            text = f"The queue has no partition {partition}, only partitions 1 to {queue.partitions}."
            reason = Reason(code="no_partition", text=text, partition=partition)
            return _make_explanation(position, [reason])
        numbers = range(1, queue.partitions + 1) if partition is None else [partition]
        stored = await self._find_stored(queue, numbers, position)
        if not stored:
            reasons = [
                *[reason async for reason in self._explain_absence(queue, numbers, position)],
                *[reason async for reason in self._explain_traces(queue, numbers, position)],
            ]
            reasons.append(Reason(code="no_trace", text=_NO_TRACE_TEXT))
            return _make_explanation(position, reasons)
        shown = {number: await self._is_shown(queue, number, position) for number in stored}
        reasons = []
        for number, message in stored.items():
            expires = message.expires
            reasons += [r async for r in self._explain_reads(queue, number, position, is_shown=shown[number])]
            text = f"It expires at {_format_ticks(expires)}."
            reasons.append(Reason(code="expires", text=text, partition=number, at=ids.ticks_to_seconds(expires)))
        reasons += [reason async for reason in self._explain_claims(queue, stored, position)]
        if (warning := clock_warning(await self._store.ledger.ids_ahead())) is not None:
            reasons.append(Reason(code="ahead", text=warning))
        return _make_explanation(position, reasons, stored=True, readable=any(shown.values()))

    async def _find_stored(self, queue: Queue, numbers: Sequence[int], position: Position) -> dict[int, Message]:
        step = max(1, self._limits.page_bytes // self._limits.longest)
        stored: dict[int, Message] = {}
        for start in range(0, len(numbers), step):
            messages: list[Message] = await self._store.messages.fetch(
                queue, [(number, position) for number in numbers[start : start + step]]
            )
            stored.update((message.partition, message) for message in messages)
            if len(stored) >= MAX_EXPLAINED_PARTITIONS:
                break
        return dict(list(stored.items())[:MAX_EXPLAINED_PARTITIONS])

    async def _is_shown(self, queue: Queue, number: int, position: Position) -> bool:
        piece = Slice(number, position, ids.following(position), limit=1, max_bytes=1)
        [page] = await self._store.messages.read(queue, [piece])
        return bool(page.messages)

    # A queue

    async def explain_queue(
        self, access: QueueAccess, *, max_counted: int = DEFAULT_COUNTED, max_groups: int = MAX_GROUPS
    ) -> QueueExplanation:
        """Explains what readers of a queue see now.

        Args:
            access: The queue.
            max_counted: Max messages of the backlog to count; beyond, the number is estimated.
            max_groups: Max groups to show, of at most ``MAX_LAGS`` partitions together; 0 leaves groups out.
        """
        info = await self._queues.describe(access)
        counts, backlog, refusal = None, None, None
        try:
            overview = self._claims.overview
            counts, backlog = await overview.count_claims(access), await overview.backlog(access, max_counted)
        except ClaimsRefused as error:
            refusal = str(error)
        names = await self._offsets.list_groups(access) if max_groups else []
        groups = await self._read_groups(access, names[: max(1, min(max_groups, MAX_LAGS // info.partitions))])
        sentences = [*_describe_queue(info), *_describe_claims(info, backlog, refusal)]
        sentences += [f"Group {group.group} is {format_count(group.lag, 'message')} behind." for group in groups]
        if warning := clock_warning(await self._store.ledger.ids_ahead()):
            sentences.append(warning)
        if len(names) > len(groups):
            sentences.append(f"{format_count(len(names) - len(groups), 'more group has', 'more groups have')} offsets.")
        return QueueExplanation(
            sentences=tuple(sentences),
            queue=info,
            claims=counts,
            backlog=backlog,
            claims_refused=refusal,
            groups=groups,
            partitions={
                number: _explain_partition(info, number, part, counts) for number, part in info.partition_info.items()
            },
        )

    async def _read_groups(self, access: QueueAccess, names: list[str]) -> tuple[Offsets, ...]:
        groups = []
        for name in names:
            with suppress(GroupNotFound):  # It was removed meanwhile.
                groups.append(await self._offsets.read_progress(access, name))
        return tuple(groups)

    # A message that is stored

    async def _explain_reads(
        self, queue: Queue, number: int, position: Position, *, is_shown: bool
    ) -> AsyncIterator[Reason]:
        delay = self._store.read_delay(queue)
        shown_at = ids.ticks_to_seconds(position[0]) + delay
        behind = ""
        if delay:
            start = format_instant(shown_at)
            behind = f" Range reads stay {format_duration(delay)} behind the clock and show it from {start} on."
        if is_shown:
            yield Reason(code="readable", text="Range reads show it.", partition=number)
        elif position[0] > await self._store.ledger.now():
            text = f"It is delayed: it is due at {_format_ticks(position[0])}.{behind}"
            yield Reason(code="delayed", text=text, partition=number, at=ids.ticks_to_seconds(position[0]))
        else:
            text = behind.strip() or "Range reads do not show it yet."
            yield Reason(code="read_delay", text=text, partition=number, at=shown_at)

    async def _explain_claims(
        self, queue: Queue, stored: Mapping[int, Message], position: Position
    ) -> AsyncIterator[Reason]:
        if (refusal := self._store.claim_logs.claims_refusal(queue)) is not None:
            yield Reason(code="not_claimable", text=f"It cannot be claimed: {refusal}")
            for reason in self._explain_doubt(queue):
                yield reason
            return
        if queue.claims == "paused":
            yield Reason(code="paused", text="Claims of this queue are paused: no messages are delivered.")
        for number, standing in (await self._read_standings(queue, list(stored), position)).items():
            for reason in _explain_stored(standing, number):
                yield reason
            async for reason in self._explain_limits(queue, stored[number], standing):
                yield reason
            async for reason in self._explain_deliveries(queue, number, position, standing):
                yield reason
        if queue.traits.waits_for:
            yield Reason(code=queue.traits.waits_for, text=queue.traits.about)

    async def _explain_limits(self, queue: Queue, message: Message, standing: _Standing) -> AsyncIterator[Reason]:
        number, share, of_key = message.partition, queue.share_of(message.partition), queue.max_claimed_per_key
        key = compute_limited_key_digest(message) if of_key else 0
        waits = standing.code in {"waiting", "unclaimed", None} and not standing.passed
        if not waits or not (share or key):
            return

        def count(state: State, expired: int) -> tuple[int, int]:
            return state.count_live(expired) if share else 0, state.count_live_with_key(expired, key) if key else 0

        claimed, claimed_of_key = (await self._claims.logs.query_states(queue, count, [number]))[number]
        if key and claimed_of_key >= of_key:
            text = (
                f"It waits for its key: {claimed_of_key} of its messages are claimed, max_claimed_per_key is {of_key}."
            )
            yield Reason(code="limits", text=text, partition=number)
        if share and claimed >= share:
            text = (
                f"It waits for its partition: {claimed} of its messages are claimed, and it may have {share} of the "
                f"queue's max_claimed {queue.max_claimed}."
            )
            yield Reason(code="limits", text=text, partition=number)

    async def _explain_deliveries(
        self, queue: Queue, number: int, position: Position, standing: _Standing
    ) -> AsyncIterator[Reason]:
        history = await JobRecords(self._store.ledger).read(queue, number, position)
        for attempt in history.attempts:
            by, why = f" by {attempt.worker}" if attempt.worker else "", f": {attempt.text}" if attempt.text else ""
            text = f"An attempt{by} failed at {format_instant(attempt.at)}: {attempt.error}{why}"
            yield Reason(code="attempt", text=text, partition=number, at=attempt.at)
        state = history.state
        if state is not None and state.number in {standing.number, *(a.number for a in history.attempts)}:
            text = f"At {format_instant(state.at)} its worker set the state: {state.json.decode()}"
            yield Reason(code="state", text=text, partition=number, at=state.at)

    async def _read_standings(self, queue: Queue, numbers: Sequence[int], position: Position) -> dict[int, _Standing]:
        return await self._claims.logs.query_states(queue, partial(_find_standing, position), numbers)

    # A message that is not stored

    async def _explain_absence(self, queue: Queue, numbers: Sequence[int], position: Position) -> AsyncIterator[Reason]:
        where = f"partition {numbers[0]}" if len(numbers) == 1 else f"partitions {numbers[0]} to {numbers[-1]}"
        yield Reason(code="absent", text=f"No message with this id is stored in {where}.")
        made, now = ids.ticks_to_seconds(position[0]), ids.ticks_to_seconds(await self._store.ledger.now())
        ttl = self._limits.default_ttl if queue.ttl is None else queue.ttl
        if made > now:
            text = (
                f"The time of the id is in the future ({format_instant(made)}): "
                "only a delayed message or a PUT can have it."
            )
            yield Reason(code="ahead", text=text, at=made)
        elif made < queue.created - self._store.clock_difference:  # Perhaps created by another clock.
            text = (
                f"The id is from {format_instant(made)}, but the queue was created at {format_instant(queue.created)}."
            )
            yield Reason(code="older_than_queue", text=text, at=queue.created)
        if made + MAX_TTL < now:
            text = "The id is older than the maximum age of messages (388 days), unless it was written later by PUT."
            yield Reason(code="expired", text=text, at=made + MAX_TTL)
        elif made + ttl < now:
            text = (
                f"With the queue's TTL of {format_duration(ttl)} it expired at {format_instant(made + ttl)}. "
                "A message may have a TTL of its own."
            )
            yield Reason(code="expired", text=text, at=made + ttl)
        for reason in self._explain_doubt(queue):
            yield reason

    def _explain_doubt(self, queue: Queue) -> Iterator[Reason]:
        if self._store.claim_logs.claims_refusal(queue) is not None:
            text = (
                f"At consistency {queue.consistency} a read may miss acknowledged writes: other readers, also in other "
                "data centres, may or may not see this message."
            )
            yield Reason(code="not_proven", text=text)

    async def _explain_traces(self, queue: Queue, numbers: Sequence[int], position: Position) -> AsyncIterator[Reason]:
        if self._store.claim_logs.claims_refusal(queue) is None:
            for number, standing in (await self._read_standings(queue, numbers, position)).items():
                for reason in _explain_absent(standing, number):
                    yield reason
                async for reason in self._explain_deliveries(queue, number, position, standing):
                    yield reason


class _Standing(msgspec.Struct, frozen=True, kw_only=True):
    """State of a message in one claim log.

    Attributes:
        code: The state; None if the log is empty.
        passed: True if claims have passed the message's id and it is not outstanding.
        deliveries: Number of deliveries that count as attempts, if still known.
        uncounted: Number of other deliveries: work on the message did not begin.
        expires: End of the claim in seconds since 1970; 0 if not known.
        target: The queue in which the message is about to become a dead letter.
        worker: Name of the last worker that claimed the message; may be blank.
        number: Log entry of the last delivery; 0 if the message is not outstanding.
        cancelled: True if an operator has cancelled the message while it was claimed.
    """

    code: Code | None
    passed: bool = False
    deliveries: int = 0
    uncounted: int = 0
    expires: float = 0.0
    target: str = ""
    worker: str = ""
    number: int = 0
    cancelled: bool = False


def _make_explanation(
    position: Position, reasons: list[Reason], *, stored: bool = False, readable: bool = False
) -> Explanation:
    timestamp = ids.timestamp_text(position[0])
    return Explanation(
        id=ids.to_hex(position), timestamp=timestamp, stored=stored, readable=readable, reasons=tuple(reasons)
    )


def _find_standing(position: Position, state: State, expired: int) -> _Standing:
    if (claim := state.outstanding.get(position)) is not None:
        return _Standing(
            code=state.find_status(position, expired),
            deliveries=claim.attempts,
            uncounted=claim.handed_out - claim.attempts,
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
    if position in state.above or any(position in deletes for deletes in state.pending_deletes.values()):
        return _Standing(code="done")
    return _Standing(code="unclaimed" if state.number else None, passed=state.is_done(position))


def _explain_stored(standing: _Standing, number: int) -> Iterator[Reason]:
    """Yields the reason for a stored message; one that claims have passed counts as done."""
    if standing.code == "done" or standing.passed:
        text = (
            "Claims do not get it again: it was acknowledged, became a dead letter, was moved or removed, or was put "
            "at an id that claims had passed. Range reads are not affected."
        )
        yield Reason(code="done", text=text, partition=number)
    elif standing.code == "unclaimed":
        yield Reason(code="unclaimed", text="It has not been claimed yet.", partition=number)
    else:
        yield from _explain_standing(standing, number)


def _explain_absent(standing: _Standing, number: int) -> Iterator[Reason]:
    """Yields the reasons for an absent message. Ignores ``passed``, which says nothing about it."""
    if standing.code == "done":
        text = f"According to the claim log of partition {number} it is done: acknowledged, moved or removed."
        yield Reason(code="done", text=text, partition=number)
    elif standing.code != "unclaimed":
        yield from _explain_standing(standing, number)


def _explain_standing(standing: _Standing, number: int) -> Iterator[Reason]:
    """Yields the reason for a standing; nothing if the message is done or was never claimed."""
    times = format_count(standing.deliveries + standing.uncounted, "time")
    if standing.uncounted:
        times += f" ({format_count(standing.deliveries, 'attempt')}; it was also given back before work on it began)"
    match standing.code:
        case "claimed":
            worker = f"Its worker is {standing.worker}." if standing.worker else "Its worker gave no name."
            text = f"It is claimed until {format_instant(standing.expires)} and was delivered {times}. {worker}"
            text += " It is cancelled: its worker was asked to stop, and no claim gets it again." * standing.cancelled
            yield Reason(code="claimed", text=text, partition=number, at=standing.expires)
        case "retrying":
            text = f"It was delivered {times} and released: claims get it from {format_instant(standing.expires)} on."
            yield Reason(code="retrying", text=text, partition=number, at=standing.expires)
        case "waiting" if standing.cancelled:
            text = f"It was delivered {times} and cancelled: no claim gets it again."
            yield Reason(code="waiting", text=text, partition=number, at=standing.expires or None)
        case "waiting" if not standing.deliveries + standing.uncounted:
            text = "It has not been claimed yet; one of the next claims gets it, even before it is due."
            yield Reason(code="waiting", text=text, partition=number)
        case "waiting":
            text = f"It was delivered {times} and its last claim has ended: one of the next claims gets it."
            yield Reason(code="waiting", text=text, partition=number, at=standing.expires or None)
        case "dead_letter":
            text = f"It was delivered {times} and is about to become a dead letter in queue {standing.target!r}."
            yield Reason(code="dead_letter", text=text, partition=number)
        case "superseded":
            text = "It was delivered, then became a dead letter, was moved, or was replaced by a newer message."
            yield Reason(code="superseded", text=text, partition=number)
        case "moved":
            yield Reason(code="moved", text="It is being moved to another queue.", partition=number)
        case _:
            return


def _format_ticks(ticks: int) -> str:
    return format_instant(ids.ticks_to_seconds(ticks))


def _describe_queue(info: QueueInfo) -> Iterator[str]:
    yield f"Queue {info.name} of {info.application}: {format_count(info.partitions, 'partition')}, {info.type}."
    yield f"Consistency {info.consistency}, store {info.store}, created {format_instant(info.created)}."
    yield f"Messages live {format_duration(info.ttl)}, unless one has a TTL of its own."
    if info.read_delay:
        behind = f"Range reads stay {format_duration(info.read_delay)} behind the clock"
        yield f"{behind}: they show messages older than {id_time(info.horizon)}."
    else:
        yield "Range reads show a message as soon as it is stored and due."
    if info.principals:
        yield f"Only these principals may read, delete or claim its messages: {', '.join(info.principals)}."


def _describe_claims(info: QueueInfo, backlog: Backlog | None, refusal: str | None) -> Iterator[str]:
    yield from _describe_ends(info, refusal)
    if info.claims == "paused":
        yield "Its claims are paused: no messages are delivered until they are opened again."
    if backlog is not None:
        yield f"For claims: {backlog_text(backlog, time.time())}."
    if info.on_ack == "delete":
        yield "Acknowledged messages are deleted."
    if about := kind_of(info).about:
        yield about.format(queue=info)
    if info.max_claimed:
        yield f"At most {info.max_claimed} are claimed at once, divided among the partitions."


def _describe_ends(info: QueueInfo, refusal: str | None) -> Iterator[str]:
    if refusal is not None:
        yield f"It cannot be claimed from: {refusal}"
    elif info.max_deliveries:
        unacknowledged = (
            f"After {format_count(info.max_deliveries, 'delivery', 'deliveries')} without an acknowledgement"
        )
        yield f"{unacknowledged} a message becomes a dead letter in {info.dead_letter}."
    if info.on_expiry == "dead-letter":
        yield f"Expired messages without a TTL of their own become dead letters in {info.dead_letter}."
    if info.result_ttl:
        yield f"Results of its jobs are kept for {format_duration(info.result_ttl)}."


def _explain_partition(
    info: QueueInfo, number: int, stored: PartitionInfo, counts: ClaimCounts | None
) -> PartitionExplanation:
    claims = None if counts is None else counts.partitions.get(number)
    return PartitionExplanation(
        count=stored.count,
        exact=stored.exact,
        oldest=stored.oldest,
        newest=stored.newest,
        shown=_describe_shown(info, stored),
        claimed=None if claims is None else claims.claimed,
        waiting=None if claims is None else claims.waiting,
        retrying=None if claims is None else claims.retrying,
    )


def _describe_shown(info: QueueInfo, stored: PartitionInfo) -> str:
    if stored.oldest is None or stored.newest is None:
        return "nothing: it is empty"
    horizon, newest = ids.parse_position(info.horizon)[0], ids.parse_position(stored.newest)[0]
    if newest < horizon:
        return "all"
    all_from = format_instant(ids.ticks_to_seconds(newest) + info.read_delay)
    return f"{'nothing' if ids.parse_position(stored.oldest)[0] >= horizon else 'a part'}, all from {all_from} on"
