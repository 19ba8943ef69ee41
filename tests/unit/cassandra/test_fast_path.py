"""The short way to a node, without a node."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.connection import ConnectionException
from cassandra.protocol import BatchMessage, OverloadedErrorMessage, PreparedQueryNotFound, UnavailableErrorMessage
from cassandra.query import BatchStatement, BatchType

from queuey.errors import StoreUnavailable
from queuey.storage.cassandra.driver import UNSET, Done, Rows, fast_request
from queuey.storage.cassandra.driver.cql import protocol
from queuey.storage.cassandra.driver.fast_path import FastPath
from queuey.storage.cassandra.driver.fast_request import FastRequest
from tests.contract.samples import eventually
from tests.replacing import replace_in

PATIENCE = 0.05


class Node:
    """A connection pool with one connection, which notes what it is sent and answers when it is told to."""

    is_shutdown = gone = False

    def __init__(self) -> None:
        self.host = self
        self._requests: dict[int, Any] = {}
        self._sent = threading.Semaphore(0)

    def borrow_connection(self, _timeout: float) -> tuple[Node, int]:
        """Gives the connection."""
        return self, len(self._requests)

    def return_connection(self, _connection: Node) -> None:
        """Takes it back."""
        if self.gone:
            raise ReferenceError

    def send_msg(self, _message: object, stream: int, answered: Any, *_rest: object) -> None:  # noqa: ANN401
        """Takes a request."""
        if self.gone:
            raise ConnectionException("closed")
        assert stream == len(self._requests)
        self._requests[stream] = answered
        self._sent.release()

    def was_sent(self) -> bool:
        """Waits for one more request."""
        return self._sent.acquire(timeout=60)

    def answer(self, answer: object) -> None:
        """Answers the last request."""
        self._requests.popitem()[1](answer)

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return len(self._requests)


class Asked:
    """Requests to nodes.

    Args:
        nodes: How many have the row.
        patience: Seconds after which the next one is asked as well; 0: never.
    """

    def __init__(self, nodes: int = 2, patience: float = 0.0) -> None:
        self.nodes = [Node() for _ in range(nodes)]
        hosts = [SimpleNamespace(is_up=True) for _ in self.nodes]
        pools = dict(zip(map(id, hosts), self.nodes, strict=True))
        metadata = SimpleNamespace(get_replicas=lambda *_: hosts)
        session: Any = SimpleNamespace(
            cluster=SimpleNamespace(metadata=metadata), _pools=SimpleNamespace(get=lambda host: pools[id(host)])
        )
        self.path = FastPath(session, "k", patience)
        self.ended: list[tuple[Rows | None, StoreUnavailable | None]] = []
        self.own_ways: list[int] = []
        self.has_ended = threading.Event()

    def send(self, *, idempotent: bool, timeout: float = 60) -> None:
        """Sends a write."""

        def driver_fallback(tell: Done, attempts: int, _left: float) -> None:
            self.own_ways.append(attempts)
            tell([(True,)], None)

        self.path.send(
            FastRequest(
                opcode=protocol.BATCH,
                body=b"",
                nodes=self.path.nodes_with(b"key"),
                timeout=timeout,
                done=self._ended,
                driver_fallback=driver_fallback,
                reads=False,
                idempotent=idempotent,
            )
        )

    def _ended(self, rows: Rows | None, error: StoreUnavailable | None) -> None:
        self.ended.append((rows, error))
        self.has_ended.set()

    @property
    def error(self) -> StoreUnavailable:
        """What the only request that has ended was answered with."""
        [(rows, error)] = self.ended
        assert rows is None
        assert error is not None
        return error


@pytest.fixture
def asking() -> Iterator[Callable[..., Asked]]:
    """Begins requests to nodes, of which the first is asked first."""
    with contextlib.ExitStack() as stack:

        def begun(*args: Any, **options: Any) -> Asked:  # noqa: ANN401
            found = Asked(*args, **options)
            stack.callback(found.path.close)
            return found

        yield begun


@pytest.fixture
def asked(asking: Callable[..., Asked]) -> Asked:
    """Requests to two nodes, of which no second one is asked for being slow."""
    return asking()


def test_a_second_node_is_asked_when_the_first_is_slow(asking: Callable[..., Asked]) -> None:
    """What may be sent twice is, and the first answer counts."""
    asked = asking(patience=PATIENCE)
    asked.send(idempotent=True)
    assert asked.nodes[1].was_sent()
    asked.nodes[1].answer(SimpleNamespace(parsed_rows=[(1,)]))
    asked.nodes[0].answer(SimpleNamespace(parsed_rows=[(2,)]))
    assert asked.ended == [([(1,)], None)]


def test_what_would_compete_with_itself_is_not_sent_to_a_second_node(asking: Callable[..., Asked]) -> None:
    """A conditional write waits for its answer, while others that came later are sent again."""
    asked = asking(patience=PATIENCE)
    asked.send(idempotent=False)
    asked.send(idempotent=True)
    first, second = asked.nodes
    for node in (first, second, first):  # The later one has gone on from the other node to the first.
        assert node.was_sent()
    assert (first.waiting, second.waiting) == (2, 1)


def test_what_is_slow_everywhere_does_not_become_more(asking: Callable[..., Asked]) -> None:
    """Of requests to nodes that do answer others few are sent a second time; a silent node is not spared."""
    with replace_in(fast_request, fast_request.MOST_SPARE, 2.0):
        asked = asking(patience=PATIENCE)
    first, second = asked.nodes
    for _ in range(12):
        asked.send(idempotent=True)
    for node in asked.nodes:
        node.answer(SimpleNamespace(parsed_rows=[]))
    threading.Event().wait(10 * PATIENCE)
    assert 2 <= first.waiting + second.waiting - 10 <= 4
    asked.send(idempotent=True)
    before = second.waiting
    assert eventually(lambda: second.waiting > before)


BUSY, BROKEN = OverloadedErrorMessage(0x1001, "", None), ConnectionException("")
FORGOTTEN = PreparedQueryNotFound(0x2500, "", b"id")
TOO_FEW = UnavailableErrorMessage(0x1000, "", {"consistency": 4, "required_replicas": 2, "alive_replicas": 1})
GONE, SILENT = "its connection does not take it", "no answer comes"


@pytest.mark.parametrize(
    ("idempotent", "answer", "own_ways", "outcome"),
    [
        # What may be sent twice goes the driver's own way, once, which is told how many nodes may have had it.
        (True, BUSY, [1], None),
        (True, BROKEN, [1], None),
        (True, GONE, [1], None),
        # What a node has not begun may always be.
        (True, FORGOTTEN, [1], None),
        (False, FORGOTTEN, [1], None),
        # What may not be sent twice is in doubt, if the node may have begun it.
        (False, BUSY, [], "unknown"),
        (False, BROKEN, [], "unknown"),
        (False, GONE, [], "unknown"),
        (False, TOO_FEW, [], "none"),
        (False, SILENT, [], "unknown"),
        (True, SILENT, [], "unknown"),
    ],
)
def test_what_becomes_of_a_request(
    asked: Asked, answer: object, own_ways: list[int], outcome: str | None, *, idempotent: bool
) -> None:
    """It ends once, however its node answers, and is sent again only if that can do no harm."""
    asked.nodes[0].gone = answer is GONE
    asked.send(idempotent=idempotent, timeout=0.01 if answer is SILENT else 60)
    if answer not in {GONE, SILENT}:
        asked.nodes[0].answer(answer)
    assert asked.has_ended.wait(60)
    assert asked.own_ways == own_ways
    if outcome is None:
        assert asked.ended == [([(True,)], None)]
    else:
        assert asked.error.outcome == outcome


@pytest.mark.parametrize("idempotent", [False, True])
def test_where_no_node_takes_it_the_driver_looks_for_one(asking: Callable[..., Asked], *, idempotent: bool) -> None:
    """Nobody has had it by then."""
    asked = asking(nodes=0)
    asked.send(idempotent=idempotent)
    assert asked.own_ways == [0]


def test_an_answer_counts_though_its_connection_cannot_be_returned(asked: Asked) -> None:
    """The session may be closed by then."""
    asked.send(idempotent=False)
    asked.nodes[0].gone = True
    with pytest.raises(ReferenceError):
        asked.nodes[0].answer(SimpleNamespace(parsed_rows=[(1,)]))
    assert asked.ended == [([(1,)], None)]


def test_a_conditional_batch_is_what_the_driver_would_send() -> None:
    """Several statements with values of every kind, and both consistency levels."""
    request = BatchStatement(batch_type=BatchType.UNLOGGED)
    values = [[b"a", None, UNSET, b""], [b"0123456789"]]
    request._statements_and_parameters = [(True, b"id%d" % n, row) for n, row in enumerate(values)]
    levels = ConsistencyLevel.QUORUM, ConsistencyLevel.LOCAL_SERIAL
    expected = io.BytesIO()
    BatchMessage(BatchType.UNLOGGED, request._statements_and_parameters, *levels).send_body(expected, 4)
    request.consistency_level, request.serial_consistency_level = levels
    assert protocol.conditional_batch(request) == expected.getvalue()
