"""Calls about the status and the results of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from queuey.api.claims import MAX_CLAIMS, MAX_NESTED
from queuey.api.jobs import MAX_JOBS, MAX_RESULT, MAX_RESULTS, JobInfo, JobInfos
from queuey.api.values import nesting_depth
from queuey.client.calls.call import (
    Call,
    HttpAnswer,
    MessageLocation,
    Seconds,
    decode,
    location_text,
    number_text,
    queue_segment,
    seconds,
)
from queuey.client.errors import InvalidArgument, JobFailed, JobGone, ResultTooLarge, ResultUnknown

MAX_RESULTS_BYTES = 131_072
"""Max bytes of all results in a request, which leaves room in the body for other fields."""

JobResult = bytes | int
"""A result as JSON, or the size in bytes of a result that is too large to send."""
JobResults = Mapping[str, JobResult]


def encode_result(value: object) -> JobResult | None:
    """Returns a result as it is sent with the acknowledgement, or None for None.

    If the JSON has more than ``MAX_RESULT`` bytes, returns only its size. Otherwise checks the nesting, because the
    service would refuse the whole request and all acknowledgements in it.

    Raises:
        InvalidArgument: The result has no JSON form, or is nested too deeply.
    """
    if value is None:
        return None
    try:
        text = msgspec.json.encode(value)
        if len(text) > MAX_RESULT:
            return len(text)
        depth = nesting_depth(msgspec.json.decode(text))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the result has no JSON form: {error}") from error
    if depth > MAX_NESTED:
        raise InvalidArgument(f"the result is nested {depth} levels deep: use at most {MAX_NESTED}")
    return text


def make_result_fields(results: JobResults) -> dict[str, Any]:
    kept = {receipt: msgspec.Raw(result) for receipt, result in results.items() if isinstance(result, bytes)}
    too_large = {receipt: result for receipt, result in results.items() if isinstance(result, int)}
    return ({"results": kept} if kept else {}) | ({"too_large": too_large} if too_large else {})


def count_fitting(results: Iterable[JobResult | None]) -> int:
    """Returns how many of the jobs, from the first on, one request may acknowledge with their results. At least 1.

    A request has at most ``MAX_CLAIMS`` jobs, ``MAX_RESULTS`` results and ``MAX_RESULTS_BYTES``.
    """
    number = with_result = length = 0
    for result in results:
        if result is not None:
            with_result += 1
            length += len(result) if isinstance(result, bytes) else 0
        if with_result > MAX_RESULTS or length > MAX_RESULTS_BYTES or number >= MAX_CLAIMS:
            break
        number += 1
    return max(1, number)


def jobs(
    queue: str, locations: Iterable[MessageLocation], wait: Seconds = 0.0, *, states: bool = False
) -> Iterator[Call[list[JobInfo]]]:
    texts = list(map(location_text, locations))
    wait = seconds(wait)
    params: list[tuple[str, str]] = [("wait", number_text("wait", wait))] if wait != 0 else []
    params += [("states", "true")] if states else []
    for start in range(0, len(texts), MAX_JOBS):
        path = f"{queue_segment(queue)}/jobs/{','.join(texts[start : start + MAX_JOBS])}"
        yield Call("GET", path, _read_infos, params=tuple(params), repeatable=True, wait=wait)


def _read_infos(answer: HttpAnswer) -> list[JobInfo]:
    return decode(answer, JobInfos).jobs


def mark_without_result(info: JobInfo, age: float) -> JobInfo:
    """Marks a done job as one without a result, if it was seen unfinished ``age`` seconds ago.

    A result written since then would still be kept if the queue keeps results for longer than ``age``, so the job had
    no result.
    """
    is_open = info.status == "done" and info.result is UNSET and info.size is UNSET
    keeps = info.kept is not UNSET and age < info.kept
    return replace(info, result=None, kept=UNSET) if is_open and keeps else info


def read_result(info: JobInfo) -> Any:  # noqa: ANN401 - any JSON value
    """Returns the result of a job that has ended.

    Raises:
        JobFailed: The job is a dead letter.
        JobGone: The job expired, was removed or superseded.
        ResultTooLarge: The job is done, and its result was too large to keep.
        ResultUnknown: The result was not set, or is not kept any more.
    """
    if info.status == "done" and info.result is not UNSET:
        return info.result
    if info.status == "done" and info.size is not UNSET:
        raise ResultTooLarge(info)
    if info.status == "failed":
        raise JobFailed(info)
    if info.status in {"expired", "removed", "superseded"}:
        raise JobGone(info)
    raise ResultUnknown(info)
