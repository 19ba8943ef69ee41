"""The states of a queue object."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from qdo.curator.lifecycle import Event, Lifecycle, State

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
