"""The states of a queue object."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from qdo.coordination.tree import State as LinkState
from qdo.curator.lifecycle import UNUSABLE_REASONS, Event, Lifecycle, State
from qdo.errors import QueueStopped

TABLE: list[tuple[State, Event, State]] = [
    ("latent", "start", "started"),
    ("latent", "close", "closed"),
    ("started", "suspended", "suspended"),
    ("started", "lost", "lost"),
    ("started", "close", "closed"),
    ("suspended", "reconnected", "started"),
    ("suspended", "lost", "lost"),
    ("suspended", "close", "closed"),
    ("lost", "close", "closed"),
]
WAY: dict[State, list[Event]] = {
    "latent": [],
    "started": ["start"],
    "suspended": ["start", "suspended"],
    "lost": ["start", "lost"],
    "closed": ["close"],
}


def lifecycle_in(state: State, heard: list[Event] | None = None) -> Lifecycle:
    lifecycle = Lifecycle("/q", None if heard is None else heard.append)
    for event in WAY[state]:
        assert lifecycle.handle(event)
    assert lifecycle.state == state
    return lifecycle


@pytest.mark.parametrize(("before", "event", "after"), TABLE)
async def test_a_state_changes(before: State, event: Event, after: State) -> None:
    """Each transition of the table happens, and wakes the waiting threads."""
    lifecycle = lifecycle_in(before)
    woken = [asyncio.ensure_future(lifecycle.changed.next.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    assert lifecycle.handle(event)
    async with asyncio.timeout(60):
        await asyncio.gather(*woken)
    assert lifecycle.state == after


@pytest.mark.parametrize("state", get_args(State))
def test_nothing_else_changes_a_state(state: State) -> None:
    """A transition that is not in the table is ignored: ``lost`` and ``closed`` are final, except for closing."""
    for event in set(get_args(Event)) - {event for before, event, _ in TABLE if before == state}:
        lifecycle = lifecycle_in(state)
        assert not lifecycle.handle(event)
        assert lifecycle.state == state


def test_the_program_hears_of_its_connection() -> None:
    """The listener is notified of changes of the connection; an error in it does no harm."""
    heard: list[Event] = []
    lifecycle = lifecycle_in("started", heard)
    states: list[LinkState] = ["suspended", "connected", "connected", "suspended", "lost", "connected"]
    for state in states:
        lifecycle.on_link_state(state)
    lifecycle.handle("close")
    assert heard == ["suspended", "reconnected", "suspended", "lost"]

    def fail(event: Event) -> None:
        raise ValueError(event)

    failing = Lifecycle("/q", fail)
    failing.handle("start")
    assert failing.handle("lost")


@pytest.mark.parametrize("state", get_args(State))
def test_a_queue_that_does_not_run_says_why(state: State) -> None:
    """The error names the queue and the next step; started and suspended queues may be used."""
    if state in UNUSABLE_REASONS:
        with pytest.raises(QueueStopped, match=r"queue /q .*(start|another)"):
            lifecycle_in(state).require_usable()
    else:
        lifecycle_in(state).require_usable()
