"""Elections on a real server: the leader after a broken connection, a lost session or a removed node."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from qdo.curator.leader import LeaderElection, LeaderState, Participant, Recipe, sort_by_turn
from qdo.errors import CoordinationLost, InvalidArgument
from qdo.group.zookeeper.link import BorrowedLink
from qdo.group.zookeeper.tree import Applied, Change, Outcome
from tests.harness.proxy import Proxy
from tests.qdo.curator.queues.queue_nodes import PATIENCE, Kazoo, Nodes, expire, until
from tests.replacing import replace

Stand = Callable[..., LeaderElection]


@pytest.fixture
def far(nodes: Nodes, proxy: Proxy) -> Kazoo:
    """A client behind the proxy."""
    return nodes.client(proxy.address)


@pytest.fixture
def path(nodes: Nodes) -> str:
    return f"{nodes.path}-leader"


@pytest.fixture
def stand(path: str) -> Iterator[Stand]:
    """Starts contenders, and ends them at the test's end."""
    with contextlib.ExitStack() as stack:

        def start(client: Kazoo, **options: Any) -> LeaderElection:  # noqa: ANN401 - of an election
            election = LeaderElection(client, path, **options)
            stack.callback(election.close)
            election.start()
            return election

        yield start


@given(
    some.lists(some.tuples(some.uuids(), some.integers(-(2**31), 2**31 - 1)), unique_by=lambda each: each[1]),
    some.sampled_from(Recipe),
)
def test_nodes_are_sorted_by_sequence_whatever_their_prefix(nodes: list[tuple[Any, int]], recipe: Recipe) -> None:
    """Nodes sort by their sequence as text, as with Curator: prefixes do not count, and the counter may be negative."""
    names = [f"_c_{each}-{recipe.value}{sequence:010d}" for each, sequence in nodes]
    turns = [name.rpartition(recipe.value)[2] for name in sort_by_turn(names, recipe)]
    assert turns == sorted(f"{sequence:010d}" for _, sequence in nodes)


@pytest.mark.parametrize("recipe", Recipe)
def test_one_leads_and_the_next_follows(client: Kazoo, path: str, stand: Stand, recipe: Recipe) -> None:
    """Contenders lead in the order of their nodes, whose names and data are Curator's."""
    first = stand(client, name="first", recipe=recipe)
    assert first.wait(PATIENCE)
    second = stand(client, name="zwei", recipe=recipe)
    while len(first.participants()) < 2:
        assert not second.wait(0.05)
    leader, follower = second.participants()
    assert (leader.name, leader.leading, follower.name, follower.leading) == ("first", True, "zwei", False)
    assert re.fullmatch(rf"_c_[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}-{recipe.value}0000000000", leader.node)
    assert first.fence == f"{path}/{leader.node}"
    assert second.fence is None
    first.close()
    assert not first.leading
    assert client.exists(f"{path}/{leader.node}") is None
    assert second.wait(PATIENCE)
    assert second.participants() == (Participant("zwei", leading=True, node=follower.node),)


def test_a_broken_connection_suspends_the_lead(proxy: Proxy, far: Kazoo, client: Kazoo, stand: Stand) -> None:
    """SUSPENDED: it no longer leads. RECONNECTED within the session: it leads again with the same node."""
    told: list[LeaderState] = []
    election = stand(far, changed=told.append)
    assert election.wait(PATIENCE)
    fence, other = election.fence, stand(client)
    proxy.cut()
    until(lambda: told == ["leading", "suspended"])
    assert (election.leading, election.fence) == (False, None)
    proxy.heal()
    assert election.wait(PATIENCE)
    assert election.fence == fence
    assert other.state == "waiting"


def test_a_lost_session_ends_the_lead(far: Kazoo, client: Kazoo, stand: Stand) -> None:
    """LOST: another one leads, and the former leader stands again behind it, with a new node."""
    election = stand(far, name="former")
    assert election.wait(PATIENCE)
    fence, other = election.fence, stand(client, name="next")
    while len(other.participants()) < 2:
        assert not other.wait(0.05)
    expire(far)
    assert other.wait(PATIENCE)
    while [each.name for each in other.participants()] != ["next", "former"]:
        assert not election.leading or not other.leading
    other.close()
    assert election.wait(PATIENCE)
    assert election.fence != fence


def test_a_contender_that_never_stood_can_be_closed(client: Kazoo, path: str) -> None:
    """It leaves nothing and cannot be started any more; an election without a node has no participants."""
    election = LeaderElection(client, path)
    election.close()
    assert election.state == "closed"
    assert not election.wait(0)
    with pytest.raises(InvalidArgument, match="started before"):
        election.start()
    assert election.participants() == ()


def test_a_removed_node_ends_the_lead(client: Kazoo, stand: Stand) -> None:
    """Removing the leader's node ends the lead; the former leader stands again."""
    told: list[LeaderState] = []
    election = stand(client, changed=told.append)
    assert election.wait(PATIENCE)
    fence = election.fence
    assert fence is not None
    client.delete(fence)
    until(lambda: told == ["leading", "waiting", "leading"])
    assert election.fence != fence


def test_a_node_whose_answer_was_lost_is_the_contenders_own(client: Kazoo, path: str, stand: Stand) -> None:
    """A contender whose answer was lost finds its node, and makes no second one before which it would wait."""
    apply, lost = BorrowedLink.apply, list[Any]()

    async def lose_first(link: BorrowedLink, changes: Iterable[Change]) -> list[Outcome]:
        outcomes = await apply(link, changes)
        if not lost and any(isinstance(outcome, Applied) for outcome in outcomes):
            lost.extend(outcomes)
            raise CoordinationLost("the answer did not come")
        return outcomes

    client.ensure_path(path)
    with replace(BorrowedLink.apply, lose_first):
        election = stand(client)
        assert election.wait(PATIENCE)
    assert lost
    assert len(election.participants()) == 1
