"""What a poll reads before the next entry is decided, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from queuey.claims.claims import ClaimUseCases
from queuey.claims.log import message_finder
from queuey.claims.log.log_requests import ClaimDelivery
from queuey.claims.rules import entry_draft
from queuey.claims.rules.entry_draft import MAX_ENTRY_IDS
from queuey.claims.rules.partition_state import MAX_OUTSTANDING
from queuey.model.errors import TooManyClaims
from queuey.model.messages import Location, Message, Page, Queue, Slice, bytes_of
from tests.replacing import replace_in
from tests.sim.replicas import DELAY, ModelStore
from tests.sim.test_sharing import QUEUE, SOON, Scene
from tests.sim.world import Process, begin

LONG = 100_000
"""Bytes of a long body."""


class Weighing(ModelStore):
    """Counts the bytes of bodies that it returns."""

    given = 0

    def begin_read(self, queue: Queue, part: Slice, done: Callable[[Page | None, Exception | None], None]) -> bool:
        def weigh(page: Page | None, error: Exception | None) -> None:
            Weighing.given += 0 if page is None else bytes_of(page.messages)
            done(page, error)

        return super().begin_read(queue, part, weigh)

    def fetch(self, queue: Queue, locations: Sequence[Location], *, kept: bool = False) -> list[Message]:
        messages = super().fetch(queue, locations, kept=kept)
        Weighing.given += bytes_of(messages)
        return messages


def claim_soon(
    scene: Scene, claims: ClaimUseCases, limit: int = 1, max_bytes: int | None = None, queue: Queue = QUEUE
) -> list[ClaimDelivery]:
    """Starts a claim, and returns the deliveries that came within SOON."""
    before = len(scene.found)
    told = partial(scene.told, scene.found)
    begin(claims.core, claims.claim(queue, limit=limit, ttl=60, max_bytes=max_bytes), told)
    scene.let(SOON)
    return scene.found[before:]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_full_partition_finds_out_what_is_gone(restarted: bool) -> None:  # noqa: FBT001 - a case
    """When all claimed messages of a full partition are gone, new ones are delivered, also by a new process."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 3)
    with replace_in(message_finder, MAX_OUTSTANDING, 3):
        given = claim_soon(scene, claims, 3)
        for delivery in given:
            scene.replicas.undo(1, delivery.message.position)
        begin(claims.core, claims.release(QUEUE, [one.receipt for one in given]), partial(scene.told, scene.settled))
        scene.fill(1, 1)
        errors: list[Exception | None] = []
        begin(claims.core, claims.claim(QUEUE, limit=1, ttl=60), lambda _found, error: errors.append(error))
        scene.let(SOON)
        assert isinstance(errors[0], TooManyClaims), "what is not seen above the horizon may be on its way"
        scene.let(DELAY)
        if restarted:
            _, claims = scene.start(ModelStore)
        assert len(claim_soon(scene, claims)) == 1


def post(scene: Scene, *lengths: int) -> None:
    for length in lengths:
        scene.replicas.write(Process(scene.world, 0.0), 1, "x" * length, lambda _position: None)
        scene.let(0.0001)
    scene.let(SOON)


def test_no_more_is_fetched_than_is_given() -> None:
    """A claim fetches at most one message more than it delivers, also of released messages."""
    scene = Scene()
    _, claims = scene.start(Weighing)
    post(scene, *[LONG] * 40)
    deliveries = claim_soon(scene, claims, 40, 5 * LONG // 2)
    assert len(deliveries) == 3
    begin(claims.core, claims.release(QUEUE, [one.receipt for one in deliveries]), partial(scene.told, scene.settled))
    scene.let(SOON)
    Weighing.given = 0
    assert len(claim_soon(scene, claims, 40, 5 * LONG // 2)) == 3
    assert Weighing.given <= 4 * LONG


def test_messages_behind_many_that_are_gone() -> None:
    """A small poll gets a new message, though gone messages fill more than one entry."""
    scene = Scene()
    _, claims = scene.start(ModelStore)
    scene.fill(1, 12)
    deliveries = claim_soon(scene, claims, 12)
    for delivery in deliveries:
        scene.replicas.undo(1, delivery.message.position)
    begin(claims.core, claims.release(QUEUE, [one.receipt for one in deliveries]), partial(scene.told, scene.settled))
    scene.let(2 * DELAY)
    with replace_in(message_finder, MAX_ENTRY_IDS, 4), replace_in(entry_draft, MAX_ENTRY_IDS, 4):
        assert claim_soon(scene, claims) == []  # By now the process knows how far unseen messages are missing.
        scene.fill(1, 1)
        assert len(claim_soon(scene, claims)) == 1
