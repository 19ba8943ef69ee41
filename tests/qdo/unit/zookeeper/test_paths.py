"""Names of nodes: every name has a node of its own, with a name that ZooKeeper accepts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo.errors import CoordinationIncompatible
from qdo.group.zookeeper.paths import GroupPaths, decode, encode, parse_partition
from qdo.group.zookeeper.tree import parent_path
from qdo.partitions import Partition, Queue

NAMES = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([".", "..", "", "zookeeper", "%", "%2E"])


@given(NAMES)
def test_a_name_is_read_back(name: str) -> None:
    """An encoded name decodes to the same name."""
    assert decode(encode(name)) == name


@given(NAMES, NAMES)
def test_different_names_are_different_nodes(one: str, other: str) -> None:
    """Two names share a node only if they are equal."""
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize("node", ["a b", "%2e", "%41", ".", "zookeeper", "%zz", "ä", "%FF"])
def test_nodes_of_somebody_else_are_noticed(node: str) -> None:
    """A node whose name is not an encoded one is not taken for ours."""
    with pytest.raises(CoordinationIncompatible):
        decode(node)


@given(NAMES, NAMES, NAMES, st.integers(1, 10**9))
def test_a_partition_is_read_back(host: str, application: str, name: str, number: int) -> None:
    """The path of a partition's node names the partition, wherever the group lies."""
    partition = Partition(Queue(host, application, name), number)
    group_paths = GroupPaths("/some/where", "group")
    for path in (group_paths.owner(partition), group_paths.offset(partition)):
        assert path.startswith("/some/where/groups/group/")
        assert parse_partition(tuple(path.split("/")[-4:])) == partition
        assert parent_path(path).endswith(encode(name))


@pytest.mark.parametrize("number", ["0", "01", "-1", "x", "", "1.0", "\u0663"])
def test_what_is_no_number_is_no_partition(number: str) -> None:
    """A partition number is 1 or more, in its canonical form."""
    with pytest.raises(CoordinationIncompatible):
        parse_partition(("h", "a", "q", number))
