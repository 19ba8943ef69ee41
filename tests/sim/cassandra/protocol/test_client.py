"""The client on a process's loop, in histories of claims and early readers; each of its rules is needed.

One rule is not shown by histories, as turns of a simulated loop take no time: when an answer was received.
``tests/unit/cassandra/cql/test_client.py`` tests it (``test_answers_are_stamped_when_they_are_received``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest

from queuey.errors import QueueNotFound, StoreUnavailable
from queuey.storage.cassandra.driver import Rows, fast_request
from queuey.storage.cassandra.driver.cql.client import _Attempt
from queuey.storage.cassandra.driver.cql.connection import Connection
from queuey.storage.cassandra.driver.errors import translate
from queuey.storage.cassandra.driver.fast_request import FastRequest
from tests.replacing import replace, replace_in
from tests.sim import storm
from tests.sim.cassandra import histories
from tests.sim.cassandra.claims import ON_CLUSTER
from tests.sim.cassandra.test_posts import HarshEarlyStorm


def find_claim_violations(seeds: Sequence[int], breaking: tuple[str, ...] = ("",)) -> list[str]:
    return storm.find_violations(seeds, ON_CLUSTER, breaking=breaking)


find_early_read_violations = partial(histories.find_violations, storm=HarshEarlyStorm)


# Mutations


def reuse_waiting_stream(connection: Connection, opcode: int, body: bytes, *receiver: Any) -> bool:  # noqa: ANN401
    """Reuses the stream of a request that was given up, though its answer may still come."""
    for stream, (receive, _) in connection._waiting.items():
        attempt = getattr(receive, "__self__", None)
        if isinstance(attempt, _Attempt) and attempt._request.is_answered:
            del connection._waiting[stream]
            connection._free.append(stream)
            break
    return REAL_SEND(connection, opcode, body, *receiver)


def repeat_through_driver(request: FastRequest, _error: BaseException) -> None:
    """Repeats any failed request through the driver."""
    request.fall_back()


def report_no_effect(error: BaseException, *, reads: bool, attempts: int = 1) -> StoreUnavailable:
    return StoreUnavailable(str(error), outcome="none")


def pass_on_every_answer(request: FastRequest, rows: Rows | None, error: StoreUnavailable | None) -> None:
    request.is_answered = True
    request.done(rows, error)


REAL_SEND = Connection.send


Find = Callable[[Sequence[int], tuple[str, ...]], list[str]]
MUTATIONS: dict[str, tuple[tuple[str, ...], Callable[[], AbstractContextManager[None]], int, Find]] = {
    "a stream is taken until its answer comes": (
        ("horizon", "attempt", "order", "early", "missed", "G1"),
        partial(replace, Connection.send, reuse_waiting_stream),
        4,
        find_early_read_violations,
    ),
    "an append is sent once": (
        ("sent",),
        partial(replace, FastRequest.fail_in_doubt, repeat_through_driver),
        6,
        find_claim_violations,
    ),
    "a lost append is in doubt": (
        ("G6",),
        partial(replace_in, fast_request, translate, report_no_effect),
        6,
        find_claim_violations,
    ),
    "a request is answered once": (
        ("answers",),
        partial(replace, FastRequest.finish, pass_on_every_answer),
        3,
        find_claim_violations,
    ),
}
"""The rules of which one fails without a mechanism, what takes that out, the seed that shows it, and its histories."""
MISREAD = (IndexError, QueueNotFound, TypeError, ValueError, struct.error)
"""Errors of reading the rows of another request."""


def test_with_all_rules() -> None:
    """With all rules in place, the histories that show the mutations keep every guarantee."""
    for _, _, seed, find in MUTATIONS.values():
        assert find([seed], ("",)) == []


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_rule_is_needed(name: str) -> None:
    """Without any one of the rules its history breaks a guarantee, or rows are misread so that reads fail."""
    breaks, instead, seed, find = MUTATIONS[name]
    with instead(), suppress(*MISREAD):
        assert find([seed], breaks)
