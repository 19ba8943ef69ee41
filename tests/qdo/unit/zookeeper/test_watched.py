"""What a session keeps of what it has read, and when it reads anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from qdo.coordination.tree import NodeData
from qdo.coordination.watched import WatchedNodes


class ScriptedLink:
    """A link to nodes that the test says, which writes down what it is asked for.

    Attributes:
        meanwhile: Called when something was read, before the answer arrives.
    """

    def __init__(self) -> None:
        self.state = "connected"
        self.nodes: dict[str, NodeData] = {}
        self.asked: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def read(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Gives nodes."""
        return await self._answer("read", paths)

    async def look(self, paths: Iterable[str], *, watch: bool = False) -> list[NodeData | None]:
        """Gives nodes."""
        return await self._answer("look", paths)

    async def children(self, paths: Iterable[str], *, watch: bool = False) -> list[list[str] | None]:
        """Gives the names in nodes."""
        (path,) = paths
        self.asked.append(f"children {path}")
        names = sorted(each.removeprefix(f"{path}/") for each in self.nodes if each.startswith(f"{path}/"))
        await self._arrive()
        return [names if path in self.nodes else None]

    async def _answer(self, what: str, paths: Iterable[str]) -> list[NodeData | None]:
        wanted = list(paths)
        self.asked += [f"{what} {path}" for path in wanted]
        found = [self.nodes.get(path) for path in wanted]
        await self._arrive()
        return found

    async def _arrive(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        await asyncio.sleep(0)


@pytest.fixture
def link() -> ScriptedLink:
    """One member, a, and nothing else."""
    link = ScriptedLink()
    link.nodes = {"/members": node(b""), "/members/a": node(b"a")}
    return link


@pytest.fixture
def watching(link: ScriptedLink) -> WatchedNodes:
    """What its session keeps."""
    return WatchedNodes(link)  # type: ignore[arg-type] # as far as it is used


def node(data: bytes) -> NodeData:
    """A node that holds something."""
    return NodeData(data, 0, 0, 0)


async def test_what_did_not_change_is_read_once(watching: WatchedNodes, link: ScriptedLink) -> None:
    """Whether asked for alone or among others; the names in a node are something else than what it holds."""
    for _ in range(2):
        assert await watching.nodes(["/members/a", "/members"]) == link.nodes
        assert await watching.node("/members/a") == node(b"a")
        assert await watching.children("/members") == ["a"]
    assert link.asked == ["read /members/a", "read /members", "children /members"]
    link.nodes["/members/a"] = node(b"new")
    watching.hear(["/members/a"])
    assert await watching.nodes(["/members/a", "/members"]) == link.nodes
    assert link.asked[3:] == ["read /members/a"]


async def test_what_changes_while_it_is_read_is_not_kept(watching: WatchedNodes, link: ScriptedLink) -> None:
    """It is returned, and read again next time; so are names."""
    for ask in (watching.nodes(["/members/a"]), watching.children("/members")):
        link.meanwhile = lambda: watching.hear(["/members/a", "/members"])
        await ask
    link.asked.clear()
    await watching.node("/members/a")
    await watching.children("/members")
    assert link.asked == ["read /members/a", "children /members"]


async def test_a_node_that_is_not_there_is_watched_too(watching: WatchedNodes, link: ScriptedLink) -> None:
    """A read watches only what there is, so it is looked for; if it appears in between it is read again."""
    assert await watching.node("/leader") is None
    assert await watching.node("/leader") is None
    assert link.asked == ["read /leader", "look /leader"]
    watching.hear(["/leader"])
    link.meanwhile = lambda: link.nodes.update({"/leader": node(b"a")})
    assert await watching.node("/leader") == node(b"a")
    assert link.asked[2:] == ["read /leader", "look /leader", "read /leader"]


async def test_after_a_break_everything_is_read_anew(watching: WatchedNodes, link: ScriptedLink) -> None:
    """Also while it lasts, where reading says what is wrong, and what was under way when it came."""
    await watching.node("/members/a")
    link.state = "suspended"
    await watching.node("/members/a")
    link.state = "connected"
    link.meanwhile = watching.forget
    await watching.node("/members")
    watching.forget()
    link.asked.clear()
    await watching.nodes(["/members/a", "/members"])
    assert link.asked == ["read /members/a", "read /members"]


async def test_a_node_without_names_is_asked_for_again(watching: WatchedNodes, link: ScriptedLink) -> None:
    """Nobody tells of names in a node that is not there."""
    assert await watching.children("/assignments") == []
    assert await watching.children("/assignments") == []
    assert link.asked == ["children /assignments"] * 2
