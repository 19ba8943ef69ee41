"""Calls about claims: claim messages, then acknowledge, renew or release them by their receipts.

All of them may be sent again after an answer that was lost:

* *acknowledge*, *renew* and *release* name the claim by its receipt. Done twice they are the same as done once.
  A *claim* may acknowledge as well.
* A *claim* whose answer was lost has claimed messages for no caller. They are delivered again later, with
  one more delivery counted, whether or not the call is sent again.

The one exception is *release all*: sent again it might release what was claimed in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from socket import gethostname
from typing import Any

import msgspec
from msgspec import UNSET

from queuey.api import claims as api
from queuey.api.claims import Backlog, ClaimCounts, QueueSize
from queuey.client.calls import tracing
from queuey.client.calls.call import (
    JSON,
    Call,
    HttpAnswer,
    MessageLocation,
    Seconds,
    decode,
    encode,
    encode_value,
    named_error,
    nothing,
    number_text,
    partitions_text,
    queue_segment,
    reads,
    seconds,
)
from queuey.client.calls.job_calls import JobResults, fields_of, fitting
from queuey.client.calls.message_calls import Partitions, messages_of, place_text, plain_messages
from queuey.client.errors import InvalidArgument
from queuey.client.results import Claimed, Message, OutstandingJob, Received, Refused

RECEIPTS_PER_CALL, RECEIPTS_WITH_REASON, MAX_QUEUES = api.MAX_CLAIMS, api.MAX_WITH_REASON, api.MAX_QUEUES
STATES_PER_CALL = 50
"""Max states in a request, half of the server's limit: 50 of the longest states fit into the body of a request."""
MOST_OF_HOST = 50
"""Max characters of a host in the name of a worker."""
_CANCELLED = b'"cancelled"'
"""In the answer to a renewal only if one of the jobs was cancelled."""

ReleaseReason = BaseException | str | tuple[str, str]
"""Why a message could not be handled: an error, a text, or an error's class and text."""

Claim = str | Claimed
"""A claim: its receipt, or what a call returned."""


class _Jobs(msgspec.Struct, frozen=True):
    jobs: list[OutstandingJob]


Receipts = dict[str, list[str]]
"""Receipts by queue."""


def names_of(queues: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the queues to claim from, in order of preference, after a check of their names and number."""
    given: object = queues  # Callers make mistakes that no type checker sees.
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for name in names:
        queue_segment(name)
    if not 1 <= len(names) <= MAX_QUEUES or len(set(names)) < len(names):
        raise InvalidArgument(f"queues are {list(names)}: claims take 1 to {MAX_QUEUES} different ones")
    return names


def claim(
    queues: Sequence[str],
    limit: int,
    ttl: Seconds,
    wait: Seconds,
    partitions: Partitions,
    acknowledged: Receipts,
    results: JobResults | None = None,
) -> Call[Received]:
    """Claims up to ``limit`` messages of the first queue that has any, and waits for some up to ``wait`` seconds.

    Before that it acknowledges up to :data:`RECEIPTS_PER_CALL` receipts of each queue, with these results.
    """
    wait = seconds(wait)
    params = [("limit", number_text("limit", limit)), ("ttl", number_text("ttl", seconds(ttl)))]
    if wait != 0:
        params.append(("wait", number_text("wait", wait)))
    named = partitions_text(partitions)
    if named != "*":
        params.append(("partitions", named))
    params += [("worker", this_process()), ("states", "true")]
    path = "_claims"
    more = fields_of(results) if results else {}
    content: bytes | None = _body({"queues": queues, "acknowledge": acknowledged} | more)
    if len(queues) == 1:
        path, receipts = f"{queue_segment(queues[0])}/claims", acknowledged.get(queues[0])
        content = _body({"acknowledge": receipts} | more) if receipts else None
    return Call(
        "POST",
        path,
        partial(_claimed, queues),
        params=tuple(params),
        headers=JSON if content else {},
        content=content,
        repeatable=True,
        wait=wait,
        span=tracing.begun("receive", ", ".join(queues), limit),
    )


def acknowledge(queue: str, receipts: Iterable[str], results: JobResults | None = None) -> Iterator[Call[None]]:
    if not results:
        return _by_receipts(queue, "ack", receipts)
    return _with_results(queue, list(receipts), results)


def _with_results(queue: str, receipts: list[str], results: JobResults) -> Iterator[Call[None]]:
    while receipts:
        count = fitting(map(results.get, receipts))
        first, receipts = receipts[:count], receipts[count:]
        fields = fields_of({receipt: results[receipt] for receipt in first if receipt in results})
        yield from _by_receipts(queue, "ack", first, **fields)


def _body(fields: dict[str, Any]) -> bytes:
    """Returns a body in which results are JSON already."""
    return msgspec.json.encode(fields) if "results" in fields else encode(fields)


def release(
    queue: str,
    receipts: Iterable[str],
    delay: Seconds | None = None,
    reason: ReleaseReason | None = None,
    retry: bool = True,  # noqa: FBT001, FBT002 - as the methods of users have it
) -> Iterator[Call[None]]:
    """Releases messages, now or in ``delay`` seconds.

    With a reason and without a delay the queue's backoff decides. Without ``retry`` they become dead letters.
    """
    delay = seconds(delay)
    fields: dict[str, Any] = {"delay": delay} if delay or (delay is not None and reason is not None) else {}
    if not retry:
        fields["retry"] = False
    if reason is None:
        return _by_receipts(
            queue, "release", receipts, most=RECEIPTS_PER_CALL if retry else RECEIPTS_WITH_REASON, **fields
        )
    why = {"error": error_of(reason)[: api.MAX_ERROR], "text": text_of(reason)[: api.MAX_TEXT]}
    return _by_receipts(queue, "release", receipts, most=RECEIPTS_WITH_REASON, reason=why, **fields)


def renew(
    queue: str, receipts: Iterable[str], ttl: Seconds, cancelled: Callable[[list[str]], object] = len
) -> Iterator[Call[None]]:
    """Keeps claims for ``ttl`` seconds from now on, if they would not last longer anyway.

    ``cancelled`` is called with the receipts of jobs that an operator has cancelled, if there are any.
    """

    def read(answer: HttpAnswer) -> None:
        if _CANCELLED in answer.content:
            cancelled([one.receipt for one in decode(answer, api.Settled).results if one.cancelled])

    return _by_receipts(queue, "renew", receipts, read=read, ttl=seconds(ttl))


def cancel(queue: str, job: MessageLocation) -> Call[api.CancelledJob]:
    return Call("POST", f"{_job(queue, job)}/cancel", reads(api.CancelledJob), repeatable=True)


def retry(queue: str, job: MessageLocation) -> Call[api.RetriedJob]:
    return Call("POST", f"{_job(queue, job)}/retry", reads(api.RetriedJob), repeatable=True)


def _job(queue: str, job: MessageLocation) -> str:
    return f"{queue_segment(queue)}/jobs/{place_text(job)}"


def set_states(queue: str, states: Mapping[str, object]) -> Iterator[Call[None]]:
    path, given = f"{queue_segment(queue)}/claims/state", list(states.items())
    for start in range(0, len(given), STATES_PER_CALL):
        content = encode_value({"states": dict(given[start : start + STATES_PER_CALL])})
        yield Call("POST", path, nothing, headers=JSON, content=content, repeatable=True)


def release_all(queue: str) -> Call[None]:
    return Call("DELETE", f"{queue_segment(queue)}/claims", nothing)


def counts(queue: str) -> Call[ClaimCounts]:
    return Call("GET", f"{queue_segment(queue)}/claims", reads(ClaimCounts), repeatable=True)


def size(queue: str, limit: int | None) -> Call[QueueSize]:
    params = () if limit is None else (("limit", number_text("limit", limit)),)
    path = f"{queue_segment(queue)}/size"
    return Call("GET", path, reads(QueueSize), params=params, repeatable=True)


def backlog(queue: str, limit: int | None) -> Call[Backlog]:
    params = () if limit is None else (("limit", number_text("limit", limit)),)
    return Call("GET", f"{queue_segment(queue)}/backlog", reads(Backlog), params=params, repeatable=True)


def outstanding(queue: str, limit: int, states: bool) -> Call[list[OutstandingJob]]:  # noqa: FBT001 - as its callers
    params = (("limit", number_text("limit", limit)), *((("states", "true"),) if states else ()))
    path = f"{queue_segment(queue)}/jobs"
    return Call("GET", path, lambda answer: decode(answer, _Jobs).jobs, params=params, repeatable=True)


def peek(queue: str, limit: int) -> Call[list[Message]]:
    params = (("limit", number_text("limit", limit)),)
    return Call("GET", f"{queue_segment(queue)}/peek", messages_of, params=params, repeatable=True)


def receipts_of(queues: Sequence[str], claims: Claim | Iterable[Claim]) -> Receipts:
    """Returns the receipts of one claim or several, by queue.

    Raises:
        InvalidArgument: Something else was given, or a bare receipt that may be of any of several queues.
    """
    found: Receipts = {}
    for claim in [claims] if isinstance(claims, str | Claimed) else claims:
        queue, receipt = (claim.queue or queues[0], claim.receipt) if isinstance(claim, Claimed) else (queues[0], claim)
        if not receipt:
            raise InvalidArgument(f"{receipt!r} is not a receipt: give what a claim has returned")
        if isinstance(claim, str) and len(queues) > 1:
            raise InvalidArgument(f"{receipt!r} is of one of {', '.join(queues)}: give what receive() has returned")
        found.setdefault(queue, []).append(receipt)
    return found


def states_of(queues: Sequence[str], states: Iterable[tuple[Claim, object]]) -> Iterator[Call[None]]:
    found: dict[str, dict[str, object]] = {}
    for claim, state in states:
        [(queue, [receipt])] = receipts_of(queues, claim).items()
        found.setdefault(queue, {})[receipt] = state
    return chain.from_iterable(set_states(queue, some) for queue, some in found.items())


def first_receipts(receipts: Receipts) -> tuple[Receipts, Receipts]:
    """Returns the receipts that one claim may acknowledge, and the others."""
    first = {queue: some[:RECEIPTS_PER_CALL] for queue, some in receipts.items()}
    rest = {queue: more for queue, some in receipts.items() if (more := some[RECEIPTS_PER_CALL:])}
    return first, rest


def each_queue(call: Callable[..., Iterator[Call[None]]], receipts: Receipts, *given: object) -> Iterator[Call[None]]:
    return chain.from_iterable(call(queue, some, *given) for queue, some in receipts.items())


def this_process() -> str:
    """Returns the name of this worker: its host and process."""
    return f"{gethostname()[:MOST_OF_HOST]}:{os.getpid()}"


def text_of(reason: ReleaseReason) -> str:
    """Returns the text of an error, also of one that cannot be shown: a worker is not to end because of it."""
    try:
        text = reason[1] if isinstance(reason, tuple) else str(reason)
    except Exception:  # noqa: BLE001 - of any kind
        text = "What it says cannot be read."
    return text.encode(errors="replace").decode()


def error_of(reason: ReleaseReason) -> str:
    """Returns the class of an error, with its module if it is not built in."""
    if isinstance(reason, tuple):
        return reason[0]
    if isinstance(reason, str):
        return "Released"
    kind = type(reason)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _by_receipts(
    queue: str,
    what: str,
    receipts: Iterable[str],
    most: int = RECEIPTS_PER_CALL,
    read: Callable[[HttpAnswer], None] = nothing,
    **fields: Any,  # noqa: ANN401 - as JSON has them
) -> Iterator[Call[None]]:
    path, given = f"{queue_segment(queue)}/claims/{what}", list(receipts)
    for start in range(0, len(given), most):
        some = given[start : start + most]
        content = _body({"receipts": some, **fields})
        span = None if what == "renew" else tracing.begun("settle", queue, len(some))
        yield Call("POST", path, read, headers=JSON, content=content, repeatable=True, span=span)


def _claimed(queues: Sequence[str], answer: HttpAnswer) -> Received:
    found = decode(answer, api.Claims if len(queues) == 1 else api.ClaimsOfOne)
    name = found.queue_name if isinstance(found, api.ClaimsOfOne) else None
    pairs = zip(plain_messages(found.messages), found.messages, strict=True)
    claimed = [
        Claimed(
            message,
            wire.receipt,
            wire.deliveries,
            wire.expires,
            name or queues[0],
            None if wire.state is UNSET else wire.state,
            found.result_ttl,
        )
        for message, wire in pairs
    ]
    received = Received(claimed, [Refused(one.receipt, one.status) for one in found.acknowledged if one.status != "ok"])
    if isinstance(found, api.ClaimsOfOne):
        received.errors = {each.queue_name: named_error(each.error_msg) for each in found.refused}
    return received
