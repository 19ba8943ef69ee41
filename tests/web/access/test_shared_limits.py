"""Limits that the credentials of an application share: one limited key fills what it can, and others still work.

Each row of :data:`SHARED` is a limit. A limited key takes until it is refused. Then another limited key and the owner
still get some, and the owner removes what the first key holds, which lets that key take again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest

from queuey.groups import drafts, state
from queuey.service import groups
from queuey.storage import Store
from tests.replacing import replace_in
from tests.web.caller import Caller, Reply
from tests.web.groups.test_members import make_limited_caller

LIMIT = 20
NUMBERS = itertools.count()


class Shared(NamedTuple):
    """A limit.

    Attributes:
        module, limit: The module that applies the limit, and its value there; the test sets it to :data:`LIMIT`.
        take: Takes one more; the number is another one each time.
        free: Removes as the owner what a request with a number has taken, given the answer to that.
        refusal: Status and code of the refusal.
    """

    module: ModuleType
    limit: int
    take: Callable[[Caller, int], Reply]
    free: Callable[[Caller, int, Reply], Reply]
    refusal: tuple[int, str]


def join(caller: Caller, group: str, *queues: str) -> Reply:
    return caller.send_json("POST", f"_groups/{group}/members", {"queues": queues or ["q"], "session": 300})


def remove_member(owner: Caller, _: int, reply: Reply) -> Reply:
    return owner("DELETE", f"_groups/g/members/{reply.json['number']}")


SHARED = {
    "groups of an application": Shared(
        groups,
        groups.MAX_GROUPS,
        lambda caller, number: join(caller, f"g{number}"),
        lambda owner, number, _: owner("DELETE", f"_groups/g{number}", force=1),
        (429, "TooManyGroups"),
    ),
    "members of a group": Shared(
        drafts, state.MAX_MEMBERS, lambda caller, _: join(caller, "g"), remove_member, (429, "TooManyMembers")
    ),
    "subscriptions of a group": Shared(
        drafts,
        state.MAX_SUBSCRIPTIONS,
        lambda caller, number: join(caller, "g", "q", f"q-{number}"),
        remove_member,
        (400, "queues"),
    ),
}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_one_key_leaves_room(owner: Caller, store: Store, shared: Shared) -> None:
    """A limited key gets half, another one the rest but a tenth, which the owner gets, who can free what they hold."""
    owner.create("q")
    keys = [make_limited_caller(owner, store, "read,claim", "q*") for _ in range(3)]

    def fill(caller: Caller) -> dict[int, Reply]:
        """Takes until a request is refused; returns the answers before."""
        taken: dict[int, Reply] = {}
        while (reply := shared.take(caller, number := next(NUMBERS))).status == 201:
            taken[number] = reply
            assert len(taken) <= LIMIT
        assert (reply.status, *reply.errors) == shared.refusal
        assert "half of that" in reply.text
        return taken

    with replace_in(shared.module, shared.limit, LIMIT):
        held = [fill(caller) for caller in keys]
        assert [len(some) for some in held] == [LIMIT // 2, LIMIT * 9 // 10 - LIMIT // 2, 0]
        assert shared.take(owner, next(NUMBERS)).status == 201
        for number in list(held[0])[:3]:
            assert shared.free(owner, number, held[0][number]).status == 200
        assert [shared.take(caller, next(NUMBERS)).status for caller in (keys[0], keys[2], owner)] == [201] * 3
