"""Tests of the requests that wait for one log, and of the steps that answer them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from queuey.claims.rules.entry_draft import EntryDraft
from queuey.model.errors import Outcome, StoreUnavailable
from queuey.model.messages import LogPage, Queue
from tests.replacing import replace
from tests.sim.replicas import ModelStore
from tests.sim.test_sharing import QUEUE as HERE
from tests.sim.test_sharing import SOON, Scene
from tests.sim.world import begin

QUEUE = Queue(application="a", name="q", uid=1, qid=2, partitions=1)


@pytest.mark.parametrize("moment", [EntryDraft.__init__, EntryDraft.acknowledge, EntryDraft.deliver])
def test_giving_up_while_an_entry_is_decided_on(moment: Callable[..., object]) -> None:
    """A request cancelled during an entry has the outcome "none" if it is not in the entry, otherwise "unknown"."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 3)
    scene.claim(claims, HERE, 2)
    scene.let(SOON)
    told: list[Outcome] = []

    def done(_value: object, error: Exception | None) -> None:
        told.append(cast("StoreUnavailable", error).outcome)

    def giving_up(*args: object) -> object:
        result = moment(*args)
        for give_up in begun:
            give_up()
        begun.clear()
        return result

    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: claims.acknowledge(HERE, [scene.found[0].receipt]),
        lambda: claims.claim(HERE, limit=1, ttl=60),
    ]
    for call, asked in zip(calls, (EntryDraft.acknowledge, EntryDraft.deliver), strict=True):
        if moment in {EntryDraft.__init__, asked}:
            last = scene.replicas.log(HERE, 1).last
            with replace(moment, giving_up):
                begun = [begin(claims.core, call(), done)]
                scene.let(SOON)
            assert told.pop() == ("none" if scene.replicas.log(HERE, 1).last == last else "unknown")
            assert not told
            assert (scene.replicas.log(HERE, 1).last == last) == (moment is EntryDraft.__init__)


def test_none_is_said_where_no_entry_was_sent() -> None:
    """If a claim finds nothing, and the read of the log before its answer fails, it has certainly changed nothing."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.claim(claims, HERE, 1)
    scene.let(SOON)
    errors: list[Exception | None] = []

    def failing(*_: object, **_options: object) -> LogPage:
        raise StoreUnavailable("no answer", outcome="unknown")

    with replace(ModelStore.read_log, failing):
        begin(claims.core, claims.claim(HERE, limit=1, ttl=60), lambda _found, error: errors.append(error))
        scene.let(SOON)
    [error] = errors
    assert isinstance(error, StoreUnavailable)
    assert error.outcome == "none"
