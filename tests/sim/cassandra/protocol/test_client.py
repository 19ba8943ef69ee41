"""The client on a process's loop, in histories of claims and early readers; each of its rules is needed.

One rule is not shown by histories, as turns of a simulated loop take no time: when an answer was received.
``tests/unit/cassandra/cql/test_client.py`` tests it (``test_answers_are_stamped_when_they_are_received``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
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

MAX_HISTORIES = 200
"""Max histories until a missing rule shows."""


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


@dataclass(frozen=True)
class Mutation:
    """A rule that is taken out.

    Attributes:
        breaks: The rules of histories of which one fails without it.
        instead: Takes it out.
        first: The first history to run. It shows the mutation.
        find_violations: Runs histories.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[None]]
    first: int
    find_violations: Callable[[Sequence[int], tuple[str, ...]], list[str]] = find_claim_violations


MUTATIONS = {
    "a stream is taken until its answer comes": Mutation(
        ("horizon", "attempt", "order", "early", "missed", "G1"),
        partial(replace, Connection.send, reuse_waiting_stream),
        first=3,
        find_violations=find_early_read_violations,
    ),
    "an append is sent once": Mutation(
        ("sent",), partial(replace, FastRequest.fail_in_doubt, repeat_through_driver), first=1
    ),
    "a lost append is in doubt": Mutation(
        ("G6",), partial(replace_in, fast_request, translate, report_no_effect), first=10
    ),
    "a request is answered once": Mutation(
        ("answers",), partial(replace, FastRequest.finish, pass_on_every_answer), first=3
    ),
}


MISREAD = (IndexError, QueueNotFound, TypeError, ValueError, struct.error)
"""Errors of reading the rows of another request."""


def test_with_all_rules() -> None:
    """With all rules in place, the histories that show the mutations keep every guarantee."""
    for mutation in MUTATIONS.values():
        assert mutation.find_violations([mutation.first], ("",)) == []


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_rule_is_needed(name: str) -> None:
    """Without any one of the rules some history breaks a guarantee, or rows are misread so that reads fail."""
    mutation = MUTATIONS[name]
    seeds = [*range(mutation.first, MAX_HISTORIES), *range(mutation.first)]
    with mutation.instead(), suppress(*MISREAD):
        assert mutation.find_violations(seeds, mutation.breaks)
