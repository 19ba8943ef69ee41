"""What a poll reads before the next entry is decided on, in simulated time."""

from __future__ import annotations

from functools import partial

import pytest

from queuey.claims import MOST_OUTSTANDING
from queuey.errors import TooManyClaims
from queuey.service import ClaimUseCases, HandedOut
from queuey.service.claims import partition_log
from tests.replacing import replace_in
from tests.sim.replicas import DELAY, ModelStore
from tests.sim.test_sharing import QUEUE, SOON, Scene


def claimed(scene: Scene, claims: ClaimUseCases, limit: int = 1) -> list[HandedOut]:
    """Claims messages; returns what was given."""
    before = len(scene.found)
    scene.claim(claims, QUEUE, limit)
    scene.let(SOON)
    return scene.found[before:]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_full_partition_finds_out_what_is_gone(restarted: bool) -> None:  # noqa: FBT001 - a case
    """When all that a partition may have claimed is gone, new messages are delivered, also by a process that starts."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 3)
    with replace_in(partition_log, MOST_OUTSTANDING, 3):
        given = claimed(scene, claims, 3)
        for one in given:
            scene.replicas.undo(1, one.message.position)
        claims.begin_release(QUEUE, [one.receipt for one in given], partial(scene._told, scene.settled))
        scene.fill(1, 1)
        errors: list[Exception | None] = []
        claims.begin_claim(QUEUE, lambda _found, error: errors.append(error), limit=1, ttl=60)
        scene.let(SOON)
        assert isinstance(errors[0], TooManyClaims), "what is not seen above the horizon may be on its way"
        scene.let(DELAY)
        if restarted:
            _, claims = scene.start(ModelStore)
        assert len(claimed(scene, claims)) == 1


def test_what_is_not_there_holds_nothing_up() -> None:
    """A small poll gets what waits to be delivered again, also behind messages that cannot be read."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 10)
    given = claimed(scene, claims, 9)
    for one in given[:-1]:
        scene.replicas.undo(1, one.message.position)
    claims.begin_release(QUEUE, [one.receipt for one in given], partial(scene._told, scene.settled))
    scene.let(SOON)
    assert [one.deliveries for _ in range(2) for one in claimed(scene, claims)] == [2, 1]
