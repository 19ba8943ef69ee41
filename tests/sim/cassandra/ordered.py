"""A storm over posts to an ordered queue: a post that begins after another's answer has higher ids, on any process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from msgspec.structs import replace as changed

from queuey.messages.posts import Draft
from queuey.model.ids import Position
from queuey.model.partitions import by_key
from tests.sim.cassandra.messages import PARTITIONS, Post
from tests.sim.cassandra.posts import PostStorm

KEYS = {by_key(key, PARTITIONS): key for key in "abcdefgh"}
"""A key for each partition."""


class OrderedStorm(PostStorm):
    kind = "ordered"

    def _address_draft(self, draft: Draft) -> Draft:
        return changed(draft, partition=None, key=KEYS[draft.partition or 0])

    def maybe_post_after(self, last: Position) -> None:
        super().maybe_post_after(last)
        if self.world.rng.random() < 0.4:
            self.world.after(0.0, self._post)

    # Checks

    def violations(self) -> Iterator[str]:
        yield from super().violations()
        placed = [post for post in self.posts if post.outcome == "acknowledged" and not post.delayed]
        for earlier, later in permutations(placed, 2):
            follows = later.qid == earlier.qid and later.began > earlier.ended and not later.key
            if follows and min(_positions(later)) <= max(_positions(earlier)):
                yield f"later: {later} is not above {earlier}"


def _positions(post: Post) -> list[Position]:
    return [position for _, position in post.locations]
