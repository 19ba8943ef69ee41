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

ENOUGH = 200
"""Max histories until a missing rule shows."""


def of_claims(seeds: Sequence[int], breaking: tuple[str, ...] = ("",)) -> list[str]:
    return storm.find_violations(seeds, ON_CLUSTER, breaking=breaking)


of_early_readers = partial(histories.find_violations, storm=HarshEarlyStorm)


# Mutations


def on_a_stream_that_waits(connection: Connection, opcode: int, body: bytes, *receiver: Any) -> bool:  # noqa: ANN401
    """Reuses the stream of a request that was given up, though its answer may still come."""
    for stream, (receive, _) in connection._waiting.items():
        attempt = getattr(receive, "__self__", None)
        if isinstance(attempt, _Attempt) and attempt._request.is_answered:
            del connection._waiting[stream]
            connection._free.append(stream)
            break
    return REAL_SEND(connection, opcode, body, *receiver)


def again(request: FastRequest, _error: BaseException) -> None:
    """Repeats any failed request through the driver."""
    request.fall_back()


def without_effect(error: BaseException, *, reads: bool, attempts: int = 1) -> StoreUnavailable:
    return StoreUnavailable(str(error), outcome="none")


def whenever_there_is_an_answer(request: FastRequest, rows: Rows | None, error: StoreUnavailable | None) -> None:
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
        violations: Runs histories.
    """

    breaks: tuple[str, ...]
    instead: Callable[[], AbstractContextManager[None]]
    first: int
    violations: Callable[[Sequence[int], tuple[str, ...]], list[str]] = of_claims


MUTATIONS = {
    "a stream is taken until its answer comes": Mutation(
        ("horizon", "attempt", "order", "early", "missed", "G1"),
        partial(replace, Connection.send, on_a_stream_that_waits),
        first=3,
        violations=of_early_readers,
    ),
    "an append is sent once": Mutation(("sent",), partial(replace, FastRequest.fail_in_doubt, again), first=1),
    "a lost append is in doubt": Mutation(
        ("G6",), partial(replace_in, fast_request, translate, without_effect), first=10
    ),
    "a request is answered once": Mutation(
        ("answers",), partial(replace, FastRequest.finish, whenever_there_is_an_answer), first=3
    ),
}


MISREAD = (IndexError, QueueNotFound, TypeError, ValueError, struct.error)
"""Errors of reading the rows of another request."""


def test_with_all_rules() -> None:
    """With all rules in place, the histories that show the mutations keep every guarantee."""
    for mutation in MUTATIONS.values():
        assert mutation.violations([mutation.first], ("",)) == []


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_rule_is_needed(name: str) -> None:
    """Without any one of the rules some history breaks a guarantee, or rows are misread so that reads fail."""
    mutation = MUTATIONS[name]
    seeds = [*range(mutation.first, ENOUGH), *range(mutation.first)]
    with mutation.instead(), suppress(*MISREAD):
        assert mutation.violations(seeds, mutation.breaks)
