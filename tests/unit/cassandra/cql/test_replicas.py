"""Which nodes the client asks: those that have the row, as the driver has computed it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queuey.storage.cassandra.driver.cql import client as client_module
from tests.replacing import replace_in
from tests.unit.cassandra.cql.scripted_node import Scene, ScriptedNode


async def test_all_nodes_are_replaced_while_nothing_is_asked(scene: Scene) -> None:
    """Without a request the client goes over to nodes of which it knew none."""
    scene.change_nodes([ScriptedNode("10.0.0.3")])
    assert not scene.client.is_usable
    await scene.connected()
    assert scene.client.is_usable


async def test_replicas_that_are_not_computed_yet(scene: Scene) -> None:
    """Requests go by the nodes known before: computing the replicas of many tokens would hold up the loop."""
    former = scene.cluster.metadata.token_map
    scene.cluster.metadata.token_map = SimpleNamespace(tokens_to_hosts_by_ks={})
    scene.client.follow(scene.cluster)
    for key in (b"key", b"another"):
        assert len(list(scene.client._nodes_with(key))) == len(scene.nodes)
    scene.cluster.metadata.token_map = former


class ManyTokens(dict[Any, Any]):
    """Replicas by token, which would take long to compare."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError


async def test_replicas_are_remembered(scene: Scene) -> None:
    """Those of a key are found once, up to a number of keys, until nodes or replicas are others."""
    asked: list[bytes] = []
    scene.cluster.metadata.token_map.token_class.from_key = asked.append
    with replace_in(client_module, client_module.MAX_ROUTES, 2):
        for key in (b"a", b"b", b"b", b"a", b"c", b"a"):
            assert len(list(scene.client._nodes_with(key))) == len(scene.nodes)
    assert asked == [b"a", b"b", b"c", b"a"]
    for _ in range(2):
        scene.cluster.metadata.token_map.tokens_to_hosts_by_ks = {"k": ManyTokens()}
        scene.client.follow(scene.cluster)
        next(scene.client._nodes_with(b"a"))
    assert asked[4:] == [b"a", b"a"]
