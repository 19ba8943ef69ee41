"""The order in which a queue's nodes are taken, and when the queue is listed."""

from __future__ import annotations

import pytest

from qdo.curator.backlog import MAX_BLOCKED, PAUSE_RATIO, RECHECK_INTERVAL, Backlog
from qdo.curator.nodes import DELAY, PRIORITY, QUEUE, Child, Names

NOW = 1_800_000_000_000
"""ms since 1970."""


def names(count: int, first: int = 0) -> list[str]:
    return [f"queue-{number:010d}" for number in range(first, first + count)]


def make_backlog(children: list[str], recipe: Names = QUEUE, refresh: int | None = None) -> Backlog:
    backlog = Backlog(recipe, refresh)
    backlog.begin_listing()
    backlog.replace_list(children, 0.0, 0.0)
    return backlog


def take(backlog: Backlog) -> Child:
    child = backlog.take(NOW)
    assert child is not None
    return child


def take_all(backlog: Backlog) -> list[str]:
    nodes = []
    while (child := backlog.take(NOW)) is not None:
        nodes.append(child.name)
    return nodes


def test_nodes_are_taken_in_order_and_once() -> None:
    """A node in hand is not taken again, even if a list still has it."""
    backlog = make_backlog(names(3)[::-1])
    first = take(backlog)
    backlog.replace_list(names(3), 0.0, 0.0)
    assert [first.name, *take_all(backlog)] == names(3)
    backlog.drop(first)
    assert backlog.take(NOW) is None


def test_what_was_not_handled_is_taken_again() -> None:
    """A node that is put back is next in its order; one that was set aside is not taken while it exists."""
    backlog = make_backlog(names(3))
    first, second = take(backlog), take(backlog)
    backlog.set_aside(second)
    backlog.put_back(first)
    backlog.replace_list(names(3), 0.0, 0.0)
    assert take_all(backlog) == [names(3)[0], names(3)[2]]
    backlog.replace_list([], 0.0, 0.0)
    backlog.replace_list(names(2, 1), 0.0, 0.0)
    assert take_all(backlog) == [second.name]


def test_a_blocked_node_waits_for_its_lock() -> None:
    """A locked node is taken when its lock is gone, which may be reported twice; a removed node is forgotten."""
    backlog = make_backlog(names(3))
    first, second = take(backlog), take(backlog)
    assert backlog.block(first, 0.0)
    assert backlog.block(second, 0.0)
    backlog.replace_list([first.name], 0.0, 0.0)
    assert take_all(backlog) == []
    for name in (first.name, first.name, second.name):
        backlog.unblock(name)
    assert take_all(backlog) == [first.name]


def test_a_blocked_node_may_be_in_hand_after_all() -> None:
    """A node is held by one thread only, even if its lock was reported gone meanwhile."""
    backlog = make_backlog(names(1))
    first = take(backlog)
    assert backlog.block(first, 0.0)
    assert backlog.hold(first)
    backlog.unblock(first.name)
    assert take_all(backlog) == []
    assert backlog.block(first, 0.0)
    backlog.unblock(first.name)
    assert not backlog.hold(first)
    assert take_all(backlog) == [first.name]


def test_locks_are_watched_up_to_a_bound() -> None:
    """Further nodes locked by others are read with a later list."""
    backlog = make_backlog(names(MAX_BLOCKED + 1))
    assert all(backlog.block(take(backlog), 0.0) for _ in range(MAX_BLOCKED))
    assert not backlog.block(take(backlog), 5.0)
    assert backlog.seconds_until_listing(6.0, NOW) == 5.0 + RECHECK_INTERVAL - 6.0


def test_what_was_not_watched_is_looked_at_again() -> None:
    """After a broken connection the queue is listed again, and locked nodes are tried again."""
    backlog = make_backlog(names(2))
    first = take(backlog)
    assert backlog.block(first, 0.0)
    assert backlog.seconds_until_listing(0.0, NOW) is None
    backlog.forget_watches()
    assert take_all(backlog) == names(2)
    assert backlog.seconds_until_listing(0.0, NOW) == 0


def test_a_queue_is_not_listed_while_there_is_something_to_take() -> None:
    """Changes are read once a list is used up; without changes the queue is not listed again."""
    backlog = Backlog(QUEUE, None)
    assert backlog.seconds_until_listing(0.0, NOW) == 0
    backlog.begin_listing()
    backlog.replace_list(names(1000), 0.0, 0.0)
    assert backlog.seconds_until_listing(0.0, NOW) is None
    backlog.mark_stale()
    for _ in range(1000):
        assert backlog.seconds_until_listing(0.0, NOW) is None
        backlog.drop(take(backlog))
    assert backlog.seconds_until_listing(0.0, NOW) == 0
    backlog.begin_listing()
    assert backlog.seconds_until_listing(0.0, NOW) is None


@pytest.mark.parametrize(("refresh", "begun"), [(1, 1), (7, 7), (0, 6)])
def test_a_queue_of_priorities_is_listed_again_after_some_nodes(refresh: int, begun: int) -> None:
    """Changes are read after a number of nodes: the configured one, or a hundredth of the list."""
    made = [f"queue-100000005{number:010d}" for number in range(500)]
    backlog = make_backlog(made, PRIORITY, refresh)
    backlog.mark_stale()
    count = 0
    while backlog.seconds_until_listing(0.0, NOW) is None:
        take(backlog)
        count += 1
    assert count == begun
    backlog.begin_listing()
    backlog.replace_list([*made, "queue-100000001" + "0000000500"], 0.0, 0.0)
    assert take(backlog).priority == 1


def test_lists_take_a_fifth_of_the_time() -> None:
    """The pause after a list grows with the time that the list took."""
    backlog = Backlog(QUEUE, None)
    backlog.begin_listing()
    backlog.replace_list([], 10.0, 12.0)
    backlog.mark_stale()
    assert backlog.seconds_until_listing(12.0, NOW) == 2.0 * PAUSE_RATIO
    assert backlog.seconds_until_listing(12.0 + 2.0 * PAUSE_RATIO, NOW) == 0


def test_what_is_not_due_is_waited_for() -> None:
    """Delayed nodes are not taken before their instant; meanwhile changes are read."""
    backlog = make_backlog([f"queue-|{NOW + 1500:08X}|0000000000", f"queue-|{NOW - 1:08X}|0000000001"], DELAY)
    assert take(backlog).epoch == NOW - 1
    assert backlog.take(NOW) is None
    assert backlog.seconds_until_due(NOW) == 1.5
    backlog.mark_stale()
    assert backlog.seconds_until_listing(0.0, NOW) == 0
    assert backlog.seconds_until_due(NOW + 1500) == 0
    assert backlog.take(NOW + 1500) is not None
    assert backlog.seconds_until_due(NOW) is None


def test_names_of_others_are_told_once() -> None:
    """A foreign name is reported with the first list that has it."""
    backlog = Backlog(QUEUE, None)
    assert backlog.replace_list(["config", *names(1)], 0.0, 0.0) == {"config"}
    assert backlog.replace_list(["config", "other"], 0.0, 0.0) == {"other"}
    assert backlog.replace_list([], 0.0, 0.0) == set()
