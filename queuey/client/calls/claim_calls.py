"""Calls about claims: claim messages, then acknowledge, renew or release them by their receipts.

All calls but one may be repeated if their answer was lost:

* *acknowledge*, *renew* and *release* name the claim by its receipt, and are idempotent. A *claim* may acknowledge as
  well.
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
    error_from_fields,
    ignore_answer,
    make_parser,
    number_text,
    partitions_text,
    queue_segment,
    seconds,
)
from queuey.client.calls.job_calls import JobResults, count_fitting, make_result_fields
from queuey.client.calls.message_calls import Partitions, messages_of, place_text, plain_messages
from queuey.client.errors import InvalidArgument
from queuey.client.results import Claimed, Message, OutstandingJob, Received, Refused
from queuey.model.messages import is_readable

RECEIPTS_PER_CALL, RECEIPTS_WITH_REASON, MAX_QUEUES = api.MAX_CLAIMS, api.MAX_WITH_REASON, api.MAX_QUEUES
STATES_PER_CALL = 50
"""Max states in a request, half of the server's limit, so that states of the max length fit into one body."""
MAX_HOST_LENGTH = 50
"""Max characters of the host name in a worker's name."""
_CANCELLED = b'"cancelled"'
"""The answer to a renewal contains this only if one of the jobs was cancelled."""

ReleaseReason = BaseException | str | tuple[str, str]
"""Why a message was not handled: an error, a text, or an error's class and text."""

Claim = str | Claimed
"""A claim: its receipt, or the claimed message that a call returned."""


class _Jobs(msgspec.Struct, frozen=True):
    jobs: list[OutstandingJob]


Receipts = dict[str, list[str]]


def check_queue_names(queues: str | Iterable[str]) -> tuple[str, ...]:
    untyped: object = queues  # Untyped callers may pass anything.
    names = tuple(untyped) if isinstance(untyped, Iterable) and not isinstance(untyped, str) else (untyped,)
    for name in names:
        queue_segment(name)
    if not 1 <= len(names) <= MAX_QUEUES or len(set(names)) < len(names):
        raise InvalidArgument(f"queues are {list(names)}: claim from 1 to {MAX_QUEUES} different ones")
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
    """Claims up to ``limit`` messages of the first queue that has any. Waits up to ``wait`` seconds for messages.

    First acknowledges up to :data:`RECEIPTS_PER_CALL` receipts of each queue, with their results. Names this process
    as the worker, and asks for the states of the messages.
    """
    wait = seconds(wait)
    params = [("limit", number_text("limit", limit)), ("ttl", number_text("ttl", seconds(ttl)))]
    if wait != 0:
        params.append(("wait", number_text("wait", wait)))
    named = partitions_text(partitions)
    if named != "*":
        params.append(("partitions", named))
    params += [("worker", name_this_process()), ("states", "true")]
    path = "_claims"
    result_fields = make_result_fields(results) if results else {}
    content: bytes | None = _encode_fields({"queues": queues, "acknowledge": acknowledged} | result_fields)
    if len(queues) == 1:
        path, receipts = f"{queue_segment(queues[0])}/claims", acknowledged.get(queues[0])
        content = _encode_fields({"acknowledge": receipts} | result_fields) if receipts else None
    return Call(
        "POST",
        path,
        partial(_read_claims, queues),
        params=tuple(params),
        headers=JSON if content else {},
        content=content,
        repeatable=True,
        wait=wait,
        span=tracing.start_call_span("receive", ", ".join(queues), limit),
    )


def acknowledge(queue: str, receipts: Iterable[str], results: JobResults | None = None) -> Iterator[Call[None]]:
    if not results:
        return _calls_by_receipts(queue, "ack", receipts)
    return _acknowledge_with_results(queue, list(receipts), results)


def _acknowledge_with_results(queue: str, receipts: list[str], results: JobResults) -> Iterator[Call[None]]:
    while receipts:
        count = count_fitting(map(results.get, receipts))
        first, receipts = receipts[:count], receipts[count:]
        fields = make_result_fields({receipt: results[receipt] for receipt in first if receipt in results})
        yield from _calls_by_receipts(queue, "ack", first, **fields)


def _encode_fields(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields) if "results" in fields else encode(fields)


def release(
    queue: str,
    receipts: Iterable[str],
    delay: Seconds | None = None,
    reason: ReleaseReason | None = None,
    retry: bool = True,  # noqa: FBT001, FBT002 - passed by position from the public methods
    begun: bool = True,  # noqa: FBT001, FBT002 - as above
) -> Iterator[Call[None]]:
    """Releases messages at once or after ``delay`` seconds.

    With a reason and no delay, the queue's backoff decides; a delay of 0 releases at once. The reason is cut to the
    API's limits. Without ``retry``, the messages become dead letters. If not ``begun``, the attempts do not count.
    """
    delay = seconds(delay)
    fields: dict[str, Any] = {"delay": delay} if delay or (delay is not None and reason is not None) else {}
    fields |= {name: False for name, value in (("retry", retry), ("begun", begun)) if not value}
    if reason is None:
        return _calls_by_receipts(
            queue, "release", receipts, max_receipts=RECEIPTS_PER_CALL if retry else RECEIPTS_WITH_REASON, **fields
        )
    error = {"error": _make_line(error_name_of(reason), api.MAX_ERROR), "text": text_of(reason)[: api.MAX_TEXT]}
    return _calls_by_receipts(queue, "release", receipts, max_receipts=RECEIPTS_WITH_REASON, reason=error, **fields)


def renew(
    queue: str, receipts: Iterable[str], ttl: Seconds, cancelled: Callable[[list[str]], object] = len
) -> Iterator[Call[None]]:
    """Extends claims to ``ttl`` seconds from now, unless they last longer already.

    If jobs were cancelled, calls ``cancelled`` with their receipts.
    """

    def read(answer: HttpAnswer) -> None:
        if _CANCELLED in answer.content:
            cancelled([r.receipt for r in decode(answer, api.Settled).results if r.cancelled])

    return _calls_by_receipts(queue, "renew", receipts, read=read, ttl=seconds(ttl))


def cancel(queue: str, job: MessageLocation) -> Call[api.CancelledJob]:
    return Call("POST", f"{_job_path(queue, job)}/cancel", make_parser(api.CancelledJob), repeatable=True)


def retry(queue: str, job: MessageLocation) -> Call[api.RetriedJob]:
    return Call("POST", f"{_job_path(queue, job)}/retry", make_parser(api.RetriedJob), repeatable=True)


def _job_path(queue: str, job: MessageLocation) -> str:
    return f"{queue_segment(queue)}/jobs/{place_text(job)}"


def set_states(queue: str, states: Mapping[str, object]) -> Iterator[Call[None]]:
    """Yields a call for every :data:`STATES_PER_CALL` states, which are given by receipt.

    Raises InvalidArgument if a state is not a JSON value.
    """
    path, items = f"{queue_segment(queue)}/claims/state", list(states.items())
    for start in range(0, len(items), STATES_PER_CALL):
        content = encode_value({"states": dict(items[start : start + STATES_PER_CALL])})
        yield Call("POST", path, ignore_answer, headers=JSON, content=content, repeatable=True)


def release_all(queue: str) -> Call[None]:
    return Call("DELETE", f"{queue_segment(queue)}/claims", ignore_answer)


def counts(queue: str) -> Call[ClaimCounts]:
    return Call("GET", f"{queue_segment(queue)}/claims", make_parser(ClaimCounts), repeatable=True)


def size(queue: str, limit: int | None) -> Call[QueueSize]:
    params = () if limit is None else (("limit", number_text("limit", limit)),)
    path = f"{queue_segment(queue)}/size"
    return Call("GET", path, make_parser(QueueSize), params=params, repeatable=True)


def backlog(queue: str, limit: int | None) -> Call[Backlog]:
    params = () if limit is None else (("limit", number_text("limit", limit)),)
    return Call("GET", f"{queue_segment(queue)}/backlog", make_parser(Backlog), params=params, repeatable=True)


def outstanding(queue: str, limit: int, states: bool) -> Call[list[OutstandingJob]]:  # noqa: FBT001 - passed by position
    params = (("limit", number_text("limit", limit)), *((("states", "true"),) if states else ()))
    path = f"{queue_segment(queue)}/jobs"
    return Call("GET", path, lambda answer: decode(answer, _Jobs).jobs, params=params, repeatable=True)


def peek(queue: str, limit: int) -> Call[list[Message]]:
    params = (("limit", number_text("limit", limit)),)
    return Call("GET", f"{queue_segment(queue)}/peek", messages_of, params=params, repeatable=True)


def receipts_of(queues: Sequence[str], claims: Claim | Iterable[Claim]) -> Receipts:
    """Returns the receipts of one claim or several, by queue.

    Raises:
        InvalidArgument: A claim is empty, or a receipt without its queue was given for several queues.
    """
    receipts: Receipts = {}
    for claim in [claims] if isinstance(claims, str | Claimed) else claims:
        queue, receipt = (claim.queue or queues[0], claim.receipt) if isinstance(claim, Claimed) else (queues[0], claim)
        if not receipt:
            raise InvalidArgument(f"{receipt!r} is not a receipt: use the receipt of a claim")
        if isinstance(claim, str) and len(queues) > 1:
            raise InvalidArgument(
                f"{receipt!r} may belong to any of {', '.join(queues)}: use the message that receive() returned"
            )
        receipts.setdefault(queue, []).append(receipt)
    return receipts


def set_states_by_queue(queues: Sequence[str], states: Iterable[tuple[Claim, object]]) -> Iterator[Call[None]]:
    by_queue: dict[str, dict[str, object]] = {}
    for claim, state in states:
        [(queue, [receipt])] = receipts_of(queues, claim).items()
        by_queue.setdefault(queue, {})[receipt] = state
    return chain.from_iterable(set_states(queue, group) for queue, group in by_queue.items())


def split_receipts(receipts: Receipts) -> tuple[Receipts, Receipts]:
    """Returns the first :data:`RECEIPTS_PER_CALL` receipts of each queue, and the others."""
    first = {queue: group[:RECEIPTS_PER_CALL] for queue, group in receipts.items()}
    rest = {queue: others for queue, group in receipts.items() if (others := group[RECEIPTS_PER_CALL:])}
    return first, rest


def each_queue(call: Callable[..., Iterator[Call[None]]], receipts: Receipts, *args: object) -> Iterator[Call[None]]:
    return chain.from_iterable(call(queue, group, *args) for queue, group in receipts.items())


def name_this_process() -> str:
    return f"{_make_line(gethostname(), MAX_HOST_LENGTH)}:{os.getpid()}"


def _make_line(text: str, max_length: int) -> str:
    """Returns text that the service accepts in one line: with escapes, unless all of it shows."""
    return (text if is_readable(text) else ascii(text)[1:-1].strip())[:max_length].strip()


def text_of(reason: ReleaseReason) -> str:
    """Returns the text of an error, in valid UTF-8.

    Never raises: an error whose ``str()`` fails must not end the worker.
    """
    try:
        text = reason[1] if isinstance(reason, tuple) else str(reason)
    except Exception:  # noqa: BLE001 - str() may raise anything
        text = "The text of this error cannot be read."
    return text.encode(errors="replace").decode()


def error_name_of(reason: ReleaseReason) -> str:
    """Returns the qualified name of the error, the class that a pair names, or ``Released`` for a text."""
    if isinstance(reason, tuple):
        return reason[0]
    if isinstance(reason, str):
        return "Released"
    kind = type(reason)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _calls_by_receipts(
    queue: str,
    action: str,
    receipts: Iterable[str],
    max_receipts: int = RECEIPTS_PER_CALL,
    read: Callable[[HttpAnswer], None] = ignore_answer,
    **fields: Any,  # noqa: ANN401 - JSON values
) -> Iterator[Call[None]]:
    path, all_receipts = f"{queue_segment(queue)}/claims/{action}", list(receipts)
    for start in range(0, len(all_receipts), max_receipts):
        chunk = all_receipts[start : start + max_receipts]
        content = _encode_fields({"receipts": chunk, **fields})
        span = None if action == "renew" else tracing.start_call_span("settle", queue, len(chunk))
        yield Call("POST", path, read, headers=JSON, content=content, repeatable=True, span=span)


def _read_claims(queues: Sequence[str], answer: HttpAnswer) -> Received:
    claims = decode(answer, api.ClaimedMessages if len(queues) == 1 else api.ClaimsOfOne)
    name = claims.queue_name if isinstance(claims, api.ClaimsOfOne) else None
    pairs = zip(plain_messages(claims.messages), claims.messages, strict=True)
    claimed = [
        Claimed(
            message,
            wire.receipt,
            wire.deliveries,
            wire.expires,
            name or queues[0],
            None if wire.state is UNSET else wire.state,
            claims.result_ttl,
            wire.handed_out or wire.deliveries,
            wire.suspected,
        )
        for message, wire in pairs
    ]
    received = Received(claimed, [Refused(r.receipt, r.status) for r in claims.acknowledged if r.status != "ok"])
    if isinstance(claims, api.ClaimsOfOne):
        received.errors = {q.queue_name: error_from_fields(q.error_msg) for q in claims.refused}
    return received
