"""Limits that the credentials of an application share: one limited key fills what it can, and others still work.

Each row of :data:`SHARED` is a limit of what is stored. A limited key takes until it is refused. Then another limited
key and the owner still get some, and the owner removes what the first key holds, which lets that key take again. What
requests hold while they run is below: limited keys have a share of their own. ``docs/operations.md`` has the table.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import pytest

from queuey.app.service import App
from queuey.groups import groups
from queuey.groups.rules import group_state, state_draft
from queuey.schedules import schedules
from queuey.storage import Store, offset_changes
from queuey.web.admission.scheduling import SharedQuota
from queuey.web.gateway import Gateway
from tests.groups.test_members import ZERO
from tests.replacing import replace_in
from tests.web.caller import Caller, Reply, limited_caller
from tests.web.gateway_calls import Request, make_runner, until

LIMIT = 20
NUMBERS = itertools.count()


class Shared(NamedTuple):
    """A limit.

    Attributes:
        module, limit: The module that applies the limit, and its value there; the test sets it to :data:`LIMIT`.
        take: Takes one more as a caller, for a queue that is its own; the number is another one each time.
        free: Removes as the owner what a request for a queue with a number has taken, given the answer to that.
        refusal: Status and code of the refusal.
        half: A credential is counted, and gets half; otherwise one may take all but the last tenth.
    """

    module: ModuleType
    limit: int
    take: Callable[[Caller, str, int], Reply]
    free: Callable[[Caller, str, int, Reply], Reply]
    refusal: tuple[int, str]
    half: bool = True


def join(caller: Caller, group: str, *queues: str) -> Reply:
    return caller.send_json("POST", f"_groups/{group}/members", {"queues": queues, "session": 300})


def remove_member(owner: Caller, _queue: str, _number: int, joined: Reply) -> Reply:
    return owner("DELETE", f"_groups/g/members/{joined.json['number']}")


def put_schedule(caller: Caller, queue: str, number: int) -> Reply:
    plan = {"queue": queue, "message": {"body": "tick"}, "every": 3600, "paused": True}
    return caller.send_json("PUT", f"_schedules/s{number}", plan)


def record_offset(caller: Caller, _queue: str, number: int) -> Reply:
    return caller.send_json("PUT", f"shared/offsets/g{number}", {"partitions": {"1": {"offset": ZERO}}})


SHARED = {
    "groups of an application": Shared(
        groups,
        groups.MAX_GROUPS,
        lambda caller, queue, number: join(caller, f"g{number}", queue),
        lambda owner, _queue, number, _reply: owner("DELETE", f"_groups/g{number}", force=1),
        (429, "TooManyGroups"),
    ),
    "members of a group": Shared(
        state_draft,
        group_state.MAX_MEMBERS,
        lambda caller, queue, _number: join(caller, "g", queue),
        remove_member,
        (429, "TooManyMembers"),
    ),
    "subscriptions of a group": Shared(
        state_draft,
        group_state.MAX_SUBSCRIPTIONS,
        lambda caller, queue, number: join(caller, "g", queue, f"{queue}-{number}"),
        remove_member,
        (400, "queues"),
    ),
    "schedules": Shared(
        schedules,
        schedules.MAX_SCHEDULES,
        put_schedule,
        lambda owner, _queue, number, _reply: owner("DELETE", f"_schedules/s{number}"),
        (429, "TooManySchedules"),
    ),
    "groups of a queue": Shared(
        offset_changes,
        offset_changes.MAX_GROUPS,
        record_offset,
        lambda owner, _queue, number, _reply: owner("DELETE", f"shared/offsets/g{number}"),
        (409, "Conflict"),
        half=False,
    ),
}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_one_key_leaves_room(owner: Caller, store: Store, shared: Shared) -> None:
    """A limited key gets half, another one the rest but a tenth, which the owner gets, who can free what they hold."""
    callers = {"own": owner}
    for number in range(3):
        queues = f"q{number},q{number}-*,shared"
        callers[f"q{number}"] = limited_caller(owner, store, "send,read,claim,admin", queues)
    for queue in (*callers, "shared"):
        owner.create(queue)

    def take(queue: str, number: int) -> Reply:
        return shared.take(callers[queue], queue, number)

    def fill(queue: str) -> dict[int, Reply]:
        """Takes as the caller of a queue until a request is refused; returns the answers before, by number."""
        taken: dict[int, Reply] = {}
        while (reply := take(queue, number := next(NUMBERS))).status < 400:
            taken[number] = reply
            assert len(taken) <= LIMIT
        assert (reply.status, *reply.errors) == shared.refusal
        assert "last tenth" in reply.text
        return taken

    half, most = LIMIT // 2 if shared.half else LIMIT * 9 // 10, LIMIT * 9 // 10
    with replace_in(shared.module, shared.limit, LIMIT):
        first = fill("q0")
        assert [len(first), len(fill("q1")), len(fill("q2"))] == [half, most - half, 0]
        assert take("own", next(NUMBERS)).status < 400
        for number in list(first)[:4]:
            assert shared.free(owner, "q0", number, first[number]).status == 200
        assert [take(queue, next(NUMBERS)).status < 400 for queue in ("q0", "q2", "own")] == [True] * 3


def test_the_owner_ends_claims_of_a_limited_key(owner: Caller, store: Store) -> None:
    """A limited key that has claimed all messages for hours loses them when the owner says so."""
    owner.create("q")
    owner.batch("q", *({"body": str(number)} for number in range(LIMIT)))
    key = limited_caller(owner, store, "read,claim", "q")
    assert len(key.claim(limit=100, ttl=36_000)) == LIMIT
    assert owner.claim(limit=100) == []
    assert key("DELETE", "q/claims").status == 403
    assert owner("DELETE", "q/claims").status == 200
    assert len(owner.claim(limit=100)) == LIMIT


class Sender:
    """Sends requests through a gateway with the credential of a caller."""

    def __init__(self, gateway: Gateway, caller: Caller) -> None:
        self._gateway, self._credential = gateway, caller.authorization

    def begin(self, request: Request) -> asyncio.Task[Reply]:
        request.headers[0] = "authorization", str(self._credential)
        return asyncio.create_task(request.to(self._gateway))


async def until_less_is_free(quota: SharedQuota, task: asyncio.Task[Reply]) -> None:
    """Waits until a request that was just begun holds some of a quota, or has ended."""
    free = quota.free
    await until(lambda: task.done() or quota.free < free)


def test_waits_of_limited_keys_leave_the_owner_its_own(app: App, store: Store, owner: Caller) -> None:
    """However many long polls limited keys hold, those of the application's own keys wait, and the other way round."""
    owner.create("q")
    keys = [limited_caller(owner, store, "read", "q") for _ in range(2)]

    async def work(gateway: Gateway) -> None:
        polls: list[asyncio.Task[Reply]] = []
        for caller in (*keys, owner):
            sender, before = Sender(gateway, caller), len(polls)
            while len(polls) < before + 30:
                polls.append(sender.begin(Request("GET", query="wait=20")))
                await until_less_is_free(gateway.polls.places, polls[-1])
                if polls[-1].done():
                    break
            assert polls[-1].result().json["error_msg"].keys() == {"TooManyWaiters"}
        places = gateway.polls.places
        assert places.held("app:queuey, limited") == 12
        assert places.held("app:queuey") == 4
        app.service.stopping.set()
        await asyncio.gather(*polls)
        assert places.free == places.total

    make_runner(app, waiters=12)(work)
