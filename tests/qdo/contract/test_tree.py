"""The tree under groups: nodes with versions, atomic changes, ephemeral nodes, watches.

These tests also run on the simulated tree, and on a session that a program lends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from qdo.errors import SessionLost
from qdo.group.zookeeper.tree import (
    ANY_VERSION,
    Applied,
    Check,
    Create,
    Delete,
    Link,
    Outcome,
    Rejection,
    RejectionReason,
    SetData,
    make_nodes,
)
from tests.qdo.contract.backends import BACKENDS, RESPONSIVE_SESSION_SECONDS, make_borrowed
from tests.qdo.contract.events import PATIENCE

BORROWED = pytest.param("borrowed", marks=pytest.mark.needs_zookeeper)


class Tree:
    """A tree with an empty node.

    Attributes:
        top: The path of the node.
    """

    def __init__(self, top: str, link: Callable[[], Link], opened: contextlib.AsyncExitStack) -> None:
        self.top = top
        self._link = link
        self._opened = opened

    async def open(self) -> Link:
        link = self._link()
        self._opened.push_async_callback(link.close)
        await link.open()
        return link

    def __truediv__(self, name: str) -> str:
        return f"{self.top}/{name}"


@pytest.fixture(params=[*sorted(BACKENDS), BORROWED])
async def tree(request: pytest.FixtureRequest) -> AsyncIterator[Tree]:
    """Each tree in turn, with an empty node."""
    async with contextlib.AsyncExitStack() as opened:
        service = {**BACKENDS, "borrowed": make_borrowed}[request.param](request)
        opened.push_async_callback(service.close)
        fresh_tree = Tree(f"{service.root}/t", lambda: service.link(session_timeout=RESPONSIVE_SESSION_SECONDS), opened)
        await make_nodes(await fresh_tree.open(), [fresh_tree.top])
        yield fresh_tree


class Watched:
    """Records the changes of watched nodes."""

    def __init__(self, link: Link) -> None:
        self.paths: list[str] = []
        self._news = asyncio.Event()
        link.on_watch = self

    def __call__(self, paths: list[str]) -> None:
        self.paths += paths
        self._news.set()

    async def next(self, count: int = 1) -> list[str]:
        """Waits for this many changes since the last call, and returns all, sorted."""
        async with asyncio.timeout(PATIENCE):
            while len(self.paths) < count:
                self._news.clear()
                await self._news.wait()
        paths, self.paths = self.paths, []
        return sorted(paths)


def make_rejection(why: RejectionReason, at: int = 0) -> Outcome:
    return Rejection(why, at)


async def test_nodes_have_data_and_versions(tree: Tree) -> None:
    """Each change of the data raises the version by one; a node that is recreated begins with the first version."""
    link, path = await tree.open(), tree / "a"
    assert await link.read([path]) == [None]
    assert await link.apply(
        [(Create(path, b"0"),), (SetData(path, b"1", 0),), (SetData(path, b"2", ANY_VERSION),)]
    ) == [Applied((0,)), Applied((1,)), Applied((2,))]
    (node,) = await link.read([path])
    assert node is not None
    assert (node.data, node.version, node.session) == (b"2", 2, 0)
    assert await link.stat([path]) == [replace(node, data=b"")]
    assert await link.apply([(Delete(path),), (Create(path),)]) == [Applied((0,)), Applied((0,))]
    (again,) = await link.read([path])
    assert again is not None
    assert again.changed != node.changed


async def test_refused_operations_name_their_reason(tree: Tree) -> None:
    """A refused operation names its reason, and its place in the change."""
    link, path, absent = await tree.open(), tree / "a", tree / "b"
    await link.apply([(Create(path),), (Create(f"{path}/c"),)])
    reason = RejectionReason
    assert await link.apply(
        [
            (Create(path),),
            (Create(f"{absent}/c"),),
            (SetData(absent, b"", ANY_VERSION),),
            (SetData(path, b"", 7),),
            (Delete(absent),),
            (Delete(path),),
            (Check(absent),),
            (Check(path, 7),),
            (Check(path), Check(path, 0), Check(absent)),
        ]
    ) == [
        make_rejection(reason.NODE_EXISTS),
        make_rejection(reason.NO_NODE),
        make_rejection(reason.NO_NODE),
        make_rejection(reason.BAD_VERSION),
        make_rejection(reason.NO_NODE),
        make_rejection(reason.NOT_EMPTY),
        make_rejection(reason.NO_NODE),
        make_rejection(reason.BAD_VERSION),
        make_rejection(reason.NO_NODE, 2),
    ]


async def test_a_change_is_made_whole_or_not_at_all(tree: Tree) -> None:
    """A refused change leaves nothing, whatever it did before; other changes sent with it are made."""
    link, path = await tree.open(), tree / "a"
    (first, second, third) = await link.apply(
        [
            (Create(path, b"1"), Create(f"{path}/c"), Check(path)),
            (SetData(path, b"2", 0), Delete(f"{path}/c"), Create(tree / "b"), Create(path)),
            (SetData(path, b"3", 0),),
        ]
    )
    assert (first, second, third) == (Applied((0, 0, 0)), make_rejection(RejectionReason.NODE_EXISTS, 3), Applied((1,)))
    (node, absent) = await link.read([path, tree / "b"])
    assert node is not None
    assert (node.data, absent) == (b"3", None)
    assert await link.children([path]) == [["c"]]


async def test_changes_that_do_not_depend_on_each_other_are_made_each_for_itself(tree: Tree) -> None:
    """Independent changes of any kind are made or refused separately, and the outcomes come in order."""
    link = await tree.open()
    places = [tree / f"{number:02}" for number in range(20)]
    made = await link.apply_each((Create(each), Create(f"{each}/in")) for each in places)
    assert made == [Applied((0, 0))] * 20
    await link.apply([(SetData(places[3], b"3", 0),), (Delete(f"{places[7]}/in"),)])
    versioned = await link.apply_each((Check(f"{each}/in"), SetData(each, b"x", 0)) for each in places)
    refusals = {3: make_rejection(RejectionReason.BAD_VERSION, 1), 7: make_rejection(RejectionReason.NO_NODE)}
    assert versioned == [refusals.get(number, Applied((0, 1))) for number in range(20)]
    mixed = await link.apply_each(
        [
            (SetData(places[0], b"0", 1), Delete(f"{places[0]}/in")),
            (SetData(places[1], b"1", 7), Delete(f"{places[1]}/in")),
            (SetData(places[2], b"2", ANY_VERSION), Delete(f"{places[2]}/in")),
            (Create(places[4]),),
            (Create(tree / "last"),),
        ]
    )
    assert mixed == [
        Applied((2, 0)),
        make_rejection(RejectionReason.BAD_VERSION),
        Applied((2, 0)),
        make_rejection(RejectionReason.NODE_EXISTS),
        Applied((0,)),
    ]
    stored = [(node and node.data, node and node.version) for node in await link.read([*places[:4], places[7]])]
    assert stored == [(b"0", 2), (b"x", 1), (b"2", 2), (b"3", 1), (b"", 0)]
    assert await link.children([*places[:3], places[3]]) == [[], ["in"], [], ["in"]]


async def test_a_node_knows_its_children(tree: Tree) -> None:
    """Children are the nodes directly below; a missing node has none."""
    link = await tree.open()
    assert await link.children([tree.top, tree / "a"]) == [[], None]
    await link.apply([(Create(tree / "a"),), (Create(tree / "a/b"),), (Create(tree / "c"),)])
    (names, inner) = await link.children([tree.top, tree / "a"])
    assert (sorted(names or ()), inner) == (["a", "c"], ["b"])
    assert await link.count([tree.top, tree / "a/b", tree / "a/c"]) == [2, 0, None]


@pytest.mark.parametrize("tree", [BORROWED, "zookeeper"], indirect=True)
async def test_names_are_completed_by_a_number(tree: Tree) -> None:
    """With names numbered by the tree, the outcome has the paths, also for a node created beside them."""
    link = await tree.open()
    numbered = Create(tree / "n-", b"x", sequence=True)
    outcomes = await link.apply([(numbered,), (Create(tree / "a"), SetData(tree / "a", b"", 0), numbered)])
    assert outcomes == [
        Applied((0,), (tree / "n-0000000000",)),
        Applied((0, 1, 0), (tree / "a", tree / "n-0000000002")),
    ]


async def test_ephemeral_nodes_go_with_their_session(tree: Tree) -> None:
    """Ephemeral nodes name their session and are removed with it; other nodes stay."""
    mine, other = await tree.open(), await tree.open()
    await mine.apply([(Create(tree / "a", ephemeral=True),), (Create(tree / "b"),)])
    (node,) = await other.read([tree / "a"])
    assert node is not None
    assert node.session == mine.session != other.session
    await mine.close()
    assert mine.finished
    await other.sync(tree.top)
    assert await other.children([tree.top]) == [["b"]]


async def test_a_session_that_has_ended_does_nothing(tree: Tree) -> None:
    """After its end a session refuses every request, and its end is reported once."""
    link = await tree.open()
    states: list[str] = []
    link.on_state = states.append
    await link.apply([(Create(tree / "a", ephemeral=True),)])
    link.end(SessionLost("enough"))
    link.end(SessionLost("enough"))
    assert (link.state, states) == ("lost", ["lost"])
    for request in (
        link.read([tree.top]),
        link.children([tree.top]),
        link.apply([]),
        link.apply([(Create(tree / "b"),)]),
    ):
        with pytest.raises(SessionLost):
            await request
    await link.close()


async def test_a_watch_tells_of_one_change(tree: Tree) -> None:
    """A watch reports one change: of a node, existing or not, or of its children, by its own session or another."""
    mine, other = await tree.open(), await tree.open()
    await mine.apply([(Create(tree / "a"),)])
    watched = Watched(mine)
    for writer in (mine, other):
        await mine.read([tree / "a", tree / "b"], watch=True)
        await writer.apply([(SetData(tree / "a", b"", ANY_VERSION),)])
        assert await watched.next() == [tree / "a"]
        await writer.apply([(SetData(tree / "a", b"", ANY_VERSION),), (Create(tree / "b"),)])
        await mine.stat([tree / "c"], watch=True)
        await mine.children([tree.top, tree / "a"], watch=True)
        await writer.apply([(Create(tree / "c"), Delete(tree / "b"))])
        assert await watched.next(2) == [tree.top, tree / "c"]
        await mine.stat([tree / "c"], watch=True)
        await writer.apply([(Delete(tree / "c"),)])
        assert await watched.next() == [tree / "c"]


async def test_the_end_of_a_session_is_a_change(tree: Tree) -> None:
    """The end of a session triggers the watches of its nodes and of their parents."""
    mine, other = await tree.open(), await tree.open()
    await other.apply([(Create(tree / "a", ephemeral=True),)])
    watched = Watched(mine)
    await mine.read([tree / "a"], watch=True)
    await mine.children([tree.top], watch=True)
    await other.close()
    assert await watched.next(2) == [tree.top, tree / "a"]


@pytest.mark.parametrize("tree", sorted(BACKENDS), indirect=True)
async def test_what_was_watched_is_told_before_later_answers(tree: Tree) -> None:
    """A change of a watched node is reported before later answers, so a cache never mixes old and new data.

    A program's own clients report changes and answers in two threads.
    """
    mine, other = await tree.open(), await tree.open()
    await mine.apply([(Create(tree / "a"),), (Create(tree / "b"),)])
    watched = Watched(mine)
    for number in range(20):
        await mine.read([tree / "a"], watch=True)
        await other.apply(
            [(SetData(tree / "a", b"", ANY_VERSION), SetData(tree / "b", str(number).encode(), ANY_VERSION))]
        )
        node = None
        while node is None or node.data != str(number).encode():
            (node,) = await mine.read([tree / "b"])
        assert watched.paths == [tree / "a"]
        watched.paths.clear()
