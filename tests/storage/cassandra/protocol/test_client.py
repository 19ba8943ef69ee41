"""The client for an event loop, against nodes whose answers the test decides."""

from __future__ import annotations

import struct
import time
from types import SimpleNamespace
from typing import Any

import pytest

from queuey.storage.cassandra.protocol import attempts, encoding
from queuey.storage.cassandra.protocol import client as client_module
from queuey.storage.cassandra.protocol import connection as connection_module
from queuey.storage.cassandra.protocol.encoding import VOID
from queuey.storage.cassandra.protocol.requests import Rows
from tests.replacing import replace_in
from tests.sim.cassandra.protocol.frames import (
    AUTH_RESPONSE,
    BOOTSTRAPPING,
    ERROR,
    OPTIONS,
    OVERLOADED,
    QUERY,
    STARTUP,
    UNAVAILABLE,
    UNPREPARED,
    error,
    frame,
    text,
)
from tests.storage.cassandra.protocol.scripted_node import CQL, ROW, Scene, ScriptedNode, make_page
from tests.waiting import until_async

FORGOTTEN = error(UNPREPARED, text("id"))
TOO_FEW = error(UNAVAILABLE, struct.pack(">Hii", 4, 2, 1))


async def test_requests_of_one_turn_are_one_write(scene: Scene) -> None:
    """Ten requests to a node are sent together, and each gets its own answer, in any order of answers."""
    [_, node] = scene.nodes
    writes = node.wire.writes
    for _ in range(10):
        scene.send(only=node.address)
    assert not scene.ended
    [wire] = await scene.await_requests(10)
    assert wire.writes == writes + 1
    for number in range(10):
        wire.answer(ROW[:-1] + b"%d" % number, at=-1)
    assert [rows for rows, _ in scene.ended] == [[(b"%d" % number,)] for number in range(10)]


async def test_nodes_are_asked_in_turn(scene: Scene) -> None:
    """Each of two nodes with a row gets half of the requests."""
    for _ in range(10):
        scene.send()
    await scene.await_requests(10)
    assert [node.waiting for node in scene.nodes] == [5, 5]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request",
        struct.pack(">BBhBi", 0x84, 0, 77, encoding.RESULT, 0),
        struct.pack(">BBhBi", 0x84, 0, -1, encoding.RESULT, 0),
    ],
)
async def test_nonsense_ends_the_connection(scene: Scene, data: bytes) -> None:
    """After bytes that are not an answer, requests are in doubt, and the client connects again."""
    node = scene.nodes[0]
    scene.send(only=node.address, idempotent=False)
    [wire] = await scene.await_requests()
    wire.send(data)
    assert scene.outcomes == ["unknown"]
    assert not wire.is_open
    await until_async(lambda: len(node.wires) == 2 and scene.client.is_up(node.address))


async def test_an_answer_that_cannot_be_decoded_is_one_requests(scene: Scene) -> None:
    """A malformed result, or a truncated error, does not affect other requests of the connection."""
    node = scene.nodes[0]
    for _ in range(3):
        scene.send(only=node.address, idempotent=False)
    [wire] = await scene.await_requests(3)
    wire.answer(b"\0\0")
    wire.answer(b"\0", ERROR)
    wire.answer()
    assert scene.outcomes == ["unknown", "unknown", None]
    assert wire.is_open


@pytest.mark.parametrize(
    ("body", "idempotent", "outcome"),
    [
        (error(OVERLOADED), True, None),
        (error(OVERLOADED), False, "unknown"),
        (error(BOOTSTRAPPING), False, None),
        (TOO_FEW, True, "none"),
        (TOO_FEW, False, "none"),
    ],
)
async def test_errors_of_a_node(scene: Scene, body: bytes, outcome: str | None, *, idempotent: bool) -> None:
    """For each error of a node the request goes to the next one, or has a known outcome."""
    scene.send(idempotent=idempotent)
    [wire] = await scene.await_requests()
    wire.answer(body, ERROR)
    if outcome is None:
        [other] = await scene.await_requests()
        assert other is not wire
        other.answer()
    await scene.await_ended()
    assert scene.outcomes == [outcome]


async def test_an_error_of_all_nodes(scene: Scene) -> None:
    """A request that no node has begun has no effect; one that all may have begun is in doubt."""
    for body, outcome in ((error(BOOTSTRAPPING), "none"), (error(OVERLOADED), "unknown")):
        scene.ended.clear()
        scene.send()
        for _ in scene.nodes:
            [wire] = await scene.await_requests()
            wire.answer(body, ERROR)
        await scene.await_ended()
        assert scene.outcomes == [outcome]


async def test_a_statement_that_a_node_has_forgotten(scene: Scene) -> None:
    """A forgotten statement is prepared once for all its requests, which the node has not begun and gets again."""
    node = scene.nodes[0]
    for _ in range(3):
        scene.send(only=node.address, idempotent=False)
    [wire] = await scene.await_requests(3)
    for _ in range(3):
        wire.answer(FORGOTTEN, ERROR)
    await scene.await_requests(3)
    assert node.prepared == [CQL]
    for _ in range(3):
        wire.answer()
    assert scene.outcomes == [None] * 3


@pytest.mark.parametrize("name", ["id", "other"])
async def test_a_statement_that_a_node_does_not_keep(scene: Scene, name: str) -> None:
    """If a statement is forgotten again at once, or its text is unknown, the next node is asked."""
    scene.send(idempotent=False)
    [wire] = await scene.await_requests()
    wire.answer(error(UNPREPARED, text(name)), ERROR)
    [other] = await scene.await_requests()
    if other is wire:
        wire.answer(FORGOTTEN, ERROR)
        [other] = await scene.await_requests()
    assert other is not wire
    other.answer()
    assert scene.outcomes == [None]


async def test_after_a_long_turn_of_the_loop_answers_are_read_first(scene: Scene) -> None:
    """Answers that arrived during a long turn of the loop are read before requests time out."""
    scene.send(timeout=1.0)
    [wire] = await scene.await_requests()
    scene.loop.call_later(attempts.CHECK_INTERVAL, wire.answer)  # Due in the turn of the check, after it.
    scene.now += 2.0
    time.sleep(2 * attempts.CHECK_INTERVAL)  # noqa: ASYNC251 - a long turn of the loop
    await scene.await_ended()
    assert scene.outcomes == [None]


async def test_a_second_node_after_a_silence() -> None:
    """A repeatable request is sent to a second node when the first is slow; the first answer counts."""
    scene = Scene(patience=0.1)
    await scene.await_connected()
    scene.send()
    scene.send(idempotent=False)
    await scene.await_requests(2)
    scene.now += 0.2
    await scene.await_requests(3)
    for node in scene.nodes:
        for letter in (b"1", b"2")[: node.waiting]:
            node.wire.answer(ROW[:-1] + letter)
    assert scene.outcomes == [None, None]
    scene.client.close()


async def test_what_is_slow_everywhere_does_not_become_more() -> None:
    """While a node answers other requests, few waiting ones are sent to a second node."""
    with replace_in(attempts, attempts.MAX_RETRY_CREDIT, 2.0):
        scene = Scene(patience=0.1)
    await scene.await_connected()
    for _ in range(12):
        scene.send()
    wires = await scene.await_requests(12)
    scene.now += 0.05
    for wire in wires:
        wire.answer()
    scene.now += 0.1
    late = scene.client._in_flight._late
    await until_async(lambda: len(late) == 10)
    await until_async(lambda: sum(node.waiting for node in scene.nodes) >= 12)
    assert sum(node.waiting for node in scene.nodes) <= 14
    scene.client.close()


async def test_streams_are_exhausted(scene: Scene) -> None:
    """If a connection has no free stream, another node is asked; if none has, the request is refused."""
    with replace_in(connection_module, connection_module.MAX_STREAMS, 4):
        for _ in range(10):
            scene.send(idempotent=False)
        wires = await scene.await_requests(8)
        assert [len(wire.unanswered_requests) for wire in wires] == [4, 4]
        await scene.await_ended(2)
        assert scene.outcomes == ["none", "none"]
        wires[0].answer()
        scene.send(idempotent=False)
        await scene.await_requests(8)
        assert [len(wire.unanswered_requests) for wire in wires] == [4, 4]


async def test_a_connection_full_of_orphans_is_replaced(scene: Scene) -> None:
    """If no stream is left to ask whether a silent node is there, the connection counts as broken."""
    node = scene.nodes[0]
    with (
        replace_in(connection_module, connection_module.MAX_STREAMS, 4),
        replace_in(client_module, client_module.HEARTBEAT_INTERVAL, 0.01),
    ):
        wire = node.wire
        wire.abort()
        await until_async(lambda: len(node.wires) >= 2 and scene.client.is_up(node.address))
        before = len(node.wires)  # On a busy machine it is made several times.
        for _ in range(4):
            scene.send(only=node.address, timeout=1.0, idempotent=False)
        await scene.await_requests(4)
        scene.now += 2.0
        await until_async(lambda: len(node.wires) > before and scene.client.is_up(node.address))
    assert scene.outcomes == ["unknown"] * 4


async def test_a_silent_connection_is_replaced(scene: Scene) -> None:
    """A silent connection is probed, and counts as broken without an answer."""
    node = scene.nodes[0]
    with replace_in(client_module, client_module.HEARTBEAT_INTERVAL, 0.05):
        node.wire.abort()
        await until_async(lambda: len(node.wires) == 2 and scene.client.is_up(node.address))
        scene.now += 10
        await until_async(lambda: OPTIONS in node.messages)
        assert scene.client.is_up(node.address)
        node.is_silent = True
        scene.now += 10
        await until_async(lambda: scene.client.is_up(node.address) is False)
        node.is_silent = False
        await until_async(lambda: scene.client.is_up(node.address))


async def test_back_pressure(scene: Scene) -> None:
    """While the transport accepts no bytes requests wait, up to a limit; further ones go elsewhere."""
    first, second = scene.nodes
    with replace_in(connection_module, attempts.MAX_WAITING_BYTES, 1000):
        first.wire.client.pause_writing()
        for _ in range(12):
            scene.send(only=first.address, body=b"x" * 100)
        await scene.turn()
        assert first.waiting == 0
        assert scene.outcomes == ["none"]
        scene.send()
        scene.send()
        await scene.turn()
        assert second.waiting == 2
        writes = first.wire.writes
        first.wire.client.resume_writing()
        assert first.waiting == 11
        assert first.wire.writes == writes + 1
        scene.send(only=first.address)
        await scene.turn()
        assert first.waiting == 12


@pytest.mark.parametrize("breaks_at", [STARTUP, AUTH_RESPONSE, QUERY])
async def test_a_connection_that_breaks_during_the_handshake(breaks_at: int) -> None:
    """A connection that breaks during the handshake is retried until it succeeds; meanwhile requests are refused."""
    scene = Scene(nodes=1, password="right")
    [node] = scene.nodes
    node.password, node.breaks_at = "right", breaks_at
    await until_async(lambda: scene.client.is_up(node.address) is False)
    scene.send(idempotent=False)
    assert scene.outcomes == ["none"]
    node.breaks_at = None
    await scene.await_connected()
    scene.client.close()


async def test_a_request_before_the_first_connection() -> None:
    """A request that comes before any node is connected waits for the first one, also one for a certain node."""
    scene = Scene()
    first, second = scene.nodes
    first.is_reachable = False
    scene.send()
    scene.send(only=second.address)
    await scene.await_requests(2)
    assert second.waiting == 2
    scene.send(only=first.address)
    assert scene.outcomes == ["none"]
    scene.client.close()


async def test_a_request_before_a_connection_that_fails() -> None:
    """A waiting request is refused once no node can be reached, or it has waited for its timeout."""
    scene = Scene(nodes=1)
    scene.nodes[0].is_reachable = False
    scene.send(idempotent=False)
    await scene.await_ended()
    scene.client.close()
    scene = Scene(nodes=1)
    scene.nodes[0].is_silent = True
    scene.send(timeout=1.0)
    await until_async(lambda: STARTUP in scene.nodes[0].messages)
    scene.now += 2.0
    await scene.await_ended()
    assert scene.outcomes == ["none"]
    scene.client.close()


@pytest.mark.parametrize(("given", "is_up"), [("right", True), ("wrong", False), (None, False)])
async def test_login(given: str | None, *, is_up: bool) -> None:
    """The right password opens the session; a wrong one, or none, does not."""
    scene = Scene(nodes=1, password=given)
    [node] = scene.nodes
    node.password = "right"
    await until_async(lambda: scene.client.is_up(node.address) is not None)
    assert scene.client.is_up(node.address) is is_up
    scene.client.close()


async def test_the_driver_learns_of_other_nodes(scene: Scene) -> None:
    """Nodes come and go with the driver's metadata; nodes of other data centres are ignored."""
    first, second = scene.nodes
    scene.send(only=first.address, idempotent=False)
    await scene.await_requests()
    third, far = ScriptedNode("10.0.0.3"), ScriptedNode("10.0.0.4")
    scene.dcs[far.address] = "other"
    scene.change_nodes([second, third, far])
    assert scene.outcomes == ["unknown"]
    await until_async(lambda: scene.client.is_up(third.address))
    assert scene.client.is_up(far.address) is None
    assert scene.client.is_up(first.address) is None
    assert not first.wire.is_open
    assert not far.wires


async def test_answers_are_stamped_when_they_are_received(scene: Scene) -> None:
    """The result of a write is the time at which its bytes were read, even if earlier answers take a while."""
    node = scene.nodes[0]

    def take_long(*_end: Any) -> None:  # noqa: ANN401 - rows and error
        scene.now += 5.0

    scene.send(only=node.address, done=take_long)
    scene.send(only=node.address, decodes=False)
    [wire] = await scene.await_requests(2)
    data = b"".join(
        frame(stream, encoding.RESULT, body)
        for (stream, *_), body in zip(wire.unanswered_requests, (ROW, VOID), strict=True)
    )
    received = scene.now = 103.0
    wire.send(data)
    assert scene.now == 108.0
    assert scene.ended == [([(received,)], None)]


async def test_a_callback_that_fails_harms_no_other(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that fails is logged, and the other answers are delivered."""
    node = scene.nodes[0]

    def fail(*_end: Any) -> None:  # noqa: ANN401 - rows and error
        raise ZeroDivisionError

    scene.send(only=node.address, done=fail)
    scene.send(only=node.address)
    [wire] = await scene.await_requests(2)
    wire.send(b"".join(frame(stream, encoding.RESULT, ROW) for stream, _, _ in wire.unanswered_requests))
    assert scene.outcomes == [None]
    assert "could not be delivered" in caplog.text
    scene.send(only=node.address, done=fail, timeout=1.0)
    scene.send(only=node.address, timeout=1.0)
    scene.now += 2.0
    await scene.await_ended(2)


async def test_requests_of_a_closed_client(scene: Scene) -> None:
    """When the client is closed its idempotent requests go to the next one; the others are in doubt."""
    sent = scene.send()
    scene.send(idempotent=False)
    await scene.await_requests(2)
    scene.client.close()
    assert (scene.resent, scene.outcomes) == ([sent], ["unknown"])


async def test_rows_that_fill_a_page(scene: Scene) -> None:
    """An answer that is not complete is passed on with the state to ask for its next page with."""
    pages: list[tuple[Rows, bytes]] = []
    request = scene.send(only=scene.nodes[0].address)
    request.on_page = lambda *page: pages.append(page)
    [wire] = await scene.await_requests()
    wire.answer(make_page(b"a", b"more"))
    assert (pages, scene.ended) == ([([(b"a",)], b"more")], [])


async def test_replicas_that_are_not_computed_yet(scene: Scene) -> None:
    """Until replicas are computed, requests use the former nodes: computing many would block the loop."""
    scene.cluster.metadata.token_map = SimpleNamespace(tokens_to_hosts_by_ks={})
    scene.client.adopt_cluster(scene.cluster)
    for _ in scene.nodes:
        scene.send()
    assert len(await scene.await_requests(len(scene.nodes))) == len(scene.nodes)
