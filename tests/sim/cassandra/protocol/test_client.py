"""The client on a process's loop, in histories of claims and early readers; each of its rules is needed.

One rule is not shown by histories, as turns of a simulated loop take no time: when an answer was received.
``tests/storage/cassandra/protocol/test_client.py`` tests it (``test_answers_are_stamped_when_they_are_received``).
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import pytest

from queuey.model.errors import QueueNotFound, StoreUnavailable
from queuey.storage.cassandra.cluster import Rows
from queuey.storage.cassandra.protocol import attempts
from queuey.storage.cassandra.protocol.attempts import CqlRequest
from queuey.storage.cassandra.protocol.client import _Attempt
from queuey.storage.cassandra.protocol.connection import NodeConnection
from queuey.storage.cassandra.protocol.errors import translate
from tests.sim import storm
from tests.sim.cassandra.claims import ON_CLUSTER
from tests.sim.cassandra.histories import broken
from tests.sim.cassandra.test_posts import HarshEarlyStorm
from tests.sim.playing import Mutation, Real, around, find_violations

ON_LOOP = storm.play(ON_CLUSTER)


# Mutations


def reuse_waiting_stream(real: Real, connection: NodeConnection, opcode: int, body: bytes, *receiver: object) -> Any:  # noqa: ANN401
    """Reuses the stream of a request that was given up, though its answer may still come."""
    waiting = connection._waiting
    for stream, (receive, _) in waiting.items():
        attempt = getattr(receive, "__self__", None)
        if isinstance(attempt, _Attempt) and attempt._request.is_answered:
            del waiting[stream]
            connection._free.append(stream)
            break
    return real(connection, opcode, body, *receiver)


def report_no_effect(error: BaseException, *, reads: bool, attempts: int = 1) -> StoreUnavailable:
    return StoreUnavailable(str(error), outcome="none")


def pass_on_every_answer(request: CqlRequest, rows: Rows | None, error: StoreUnavailable | None) -> None:
    request.is_answered = True
    request.done(rows, error)


MUTATIONS = {
    "a stream is taken until its answer comes": broken(
        HarshEarlyStorm, "horizon attempt order early missed G1", 0, around(NodeConnection.send, reuse_waiting_stream)
    ),
    "an append is sent once": Mutation(ON_LOOP, ("sent",), [(CqlRequest.fail_in_doubt, CqlRequest.retry)], 6),
    "a lost append is in doubt": Mutation(ON_LOOP, ("G6",), [(attempts, translate, report_no_effect)], 0),
    "a request is answered once": Mutation(ON_LOOP, ("answers",), [(CqlRequest.finish, pass_on_every_answer)], 3),
}
MISREAD = (IndexError, QueueNotFound, TypeError, ValueError, struct.error)
"""Errors of reading the rows of another request."""


def test_with_all_rules() -> None:
    """With all rules in place, the histories that show the mutations keep every guarantee."""
    for one in MUTATIONS.values():
        assert find_violations([one.seed], one.play) == []


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_each_rule_is_needed(name: str) -> None:
    """Without any one of the rules its history breaks a guarantee, or rows are misread so that reads fail."""
    with suppress(*MISREAD):
        assert MUTATIONS[name].find_violations()
