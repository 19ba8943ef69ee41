"""The client asks the nodes that have the row, as the driver has computed them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queuey.storage.cassandra.driver.cql import client as client_module
from tests.replacing import replace_in
from tests.unit.cassandra.cql.scripted_node import Scene, ScriptedNode


async def test_all_nodes_are_replaced_while_nothing_is_asked(scene: Scene) -> None:
    """If all nodes are replaced while no request runs, the client switches to the new ones."""
    scene.change_nodes([ScriptedNode("10.0.0.3")])
    assert not scene.client.is_usable
    await scene.await_connected()
    assert scene.client.is_usable


async def test_replicas_that_are_not_computed_yet(scene: Scene) -> None:
    """Until replicas are computed, requests use the former nodes: computing many would block the loop."""
    former = scene.cluster.metadata.token_map
    scene.cluster.metadata.token_map = SimpleNamespace(tokens_to_hosts_by_ks={})
    scene.client.adopt_cluster(scene.cluster)
    for key in (b"key", b"another"):
        assert len(list(scene.client._nodes_with(key))) == len(scene.nodes)
    scene.cluster.metadata.token_map = former


class ManyTokens(dict[Any, Any]):
    """Replicas by token, which would take long to compare."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError


async def test_replicas_are_remembered(scene: Scene) -> None:
    """The replicas of a key are computed once, for a limited number of keys, until nodes or replicas change."""
    keys: list[bytes] = []
    scene.cluster.metadata.token_map.token_class.from_key = keys.append
    with replace_in(client_module, client_module.MAX_ROUTES, 2):
        for key in (b"a", b"b", b"b", b"a", b"c", b"a"):
            assert len(list(scene.client._nodes_with(key))) == len(scene.nodes)
    assert keys == [b"a", b"b", b"c", b"a"]
    for _ in range(2):
        scene.cluster.metadata.token_map.tokens_to_hosts_by_ks = {"k": ManyTokens()}
        scene.client.adopt_cluster(scene.cluster)
        next(scene.client._nodes_with(b"a"))
    assert keys[4:] == [b"a", b"a"]
