"""Nothing that a tenant can make long runs in the event loop without a bound on its turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from queuey.access.credentials.members import credential_of
from queuey.access.credentials.readers import digest_of
from queuey.api.groups import Heartbeat
from queuey.app.application import make_app
from queuey.app.service import Service
from queuey.groups.local_group import LocalGroup, hash_secret
from queuey.groups.rules.group_state import (
    MAX_MEMBERS,
    GroupState,
    GroupSubscription,
    JoinedMember,
    JoinRequest,
    find_changed_rows,
)
from queuey.groups.rules.planning import SubscribedQueues, make_plan
from queuey.groups.rules.state_draft import GroupDraft
from queuey.model.groups import GroupChange, GroupHead
from queuey.model.messages import Queue, QueueSpec
from queuey.model.rights import Caller
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from queuey.web.gateway import Gateway
from tests.backends import SqliteLocation
from tests.web.gateway_calls import KEY, Reply, Request, make_runner
from tests.web.loop_turns import StepCore, TurnMeter

MAX_STEPS = 350_000
"""Max steps of a turn: about 5 ms. Claims of 1,000 messages need most of them."""
APP = "queuey"
QUEUES = 10_000
"""Queues of the groups, with one partition each: as many as a plan may have."""
SUBSCRIPTIONS = 4
LIMITED = 400
"""Members of the large group that send heartbeats to this process."""
CALLER = Caller(frozenset({f"app:{APP}"}), (), f"app:{APP}")
CREDENTIAL = credential_of([digest_of(KEY)], CALLER)
WAITING = 20_000
"""Number of messages that a partition with keys remembers as waiting, and of claims that it may have."""
FULL_BATCH = [{"body": f"{number:05}" + "x" * 8_000} for number in range(1_000)]


class Scene:
    """An application at the limits of what a tenant may store, and a process that serves it.

    Args:
        store: The store.
        gateway: Serves requests.
        service: The use cases.
        meter: Counts the steps of the loop.
    """

    def __init__(self, store: Store, gateway: Gateway, service: Service, meter: TurnMeter) -> None:
        self.store = store
        self.service = service
        self.meter = meter
        self._gateway = gateway

    async def prepare(self, method: str, path: str, body: Any = None, query: str = "", **headers: str) -> Reply:  # noqa: ANN401
        """Sends a request whose steps do not count."""
        return await self._make(method, path, body, query, headers).to(self._gateway)

    async def ask(self, method: str, path: str, body: Any = None, query: str = "", **headers: str) -> Reply:  # noqa: ANN401
        """Sends a request whose steps count; the answer must be a success."""
        request = self._make(method, path, body, query, headers)
        reply: Reply = await self.count(lambda: request.to(self._gateway))
        assert reply.status in {200, 201}, reply
        return reply

    async def count(self, act: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401
        """Counts the steps of the turns until an act has ended, and of the work that it leaves behind."""
        with self.meter.counting():
            result = await asyncio.ensure_future(act())
            await asyncio.sleep(0.05)
        return result

    async def open_group(self, name: str) -> LocalGroup:
        await self.service.groups.show(APP, name, lambda _queue: False, few=True)
        local = self.service.groups.served[APP, name]
        await local.changes.read_sessions()
        return local

    @staticmethod
    def _make(method: str, path: str, body: Any, query: str, headers: dict[str, str]) -> Request:  # noqa: ANN401
        content = b"" if body is None else json.dumps(body).encode()
        fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
        fields += [("content-type", "application/json")] * (body is not None)
        return Request(method, f"/v1/{APP}{path}", content, headers=fields, query=query)


# What stands in the store


def make_group(queues: Sequence[Queue], members: int, subscriptions: int, now: int) -> GroupState:
    """Returns a group whose plan is full. Each subscription has 20 patterns, of which only the last one matches."""
    patterns = [
        tuple(sorted([*(f"*{'[a-z]' * 15}[!a]{slot}-{number}" for number in range(19)), "g*"]))
        for slot in range(subscriptions)
    ]
    subscribed = {slot: GroupSubscription((), patterns[slot], CREDENTIAL) for slot in range(subscriptions)}
    joined = {
        number: JoinedMember(
            slot=number,
            number=number,
            digest=hash_secret("secret"),
            subscription=number % subscriptions,
            instance="",
            session=300_000,
            revoke=30_000,
            grace=0,
            joined=now,
            state="present",
        )
        for number in range(1, members + 1)
    }
    state = GroupState(GroupHead(epoch=now, born=now, last_member=members, hour=now), joined, subscribed, {})
    rights: dict[int, bool] = {}
    views = {slot: SubscribedQueues(each, rights) for slot, each in subscribed.items()}
    for view, queue in product(views.values(), queues):
        view.add(queue)
    return replace(state, plan=make_plan(state, queues, views).queues)


async def fill(store: Store) -> None:
    create = store.catalogue.create_queue
    made = [create(APP, f"g{number:05}" + "a" * 44, QueueSpec()) for number in range(QUEUES)]
    queues = [queue for queue, _ in await asyncio.gather(*made)]
    for name, options in {
        "plain": {},
        "counted": {},
        "dedup": {"kind": "dedup"},
        "ordered": {"kind": "ordered"},
        "keyed": {"max_claimed_per_key": 1},
    }.items():
        await create(APP, name, QueueSpec(**options))  # type: ignore[arg-type]
    for name, members, subscriptions in (("large", MAX_MEMBERS, SUBSCRIPTIONS), ("single", 1, 1)):
        state = make_group(queues, members, subscriptions, store.clock.now_ms())
        change = GroupChange(state.head, find_changed_rows(GroupState(), state))
        assert await store.groups.change_group(APP, name, 0, change) is not None


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> SqliteLocation:
    location = SqliteLocation(tmp_path_factory.mktemp("turns"))
    store = location.open()
    bridge.run(store.applications.create_application(APP))
    bridge.run(store.applications.add_key(APP, digest_of(KEY)))
    asyncio.run(fill(store))
    store.close()
    return location


# The computations


async def search_queues(scene: Scene) -> None:
    local = await scene.open_group("large")
    await scene.count(partial(local.changes.search, local.cache.state))


async def plan_group(scene: Scene) -> None:
    local = await scene.open_group("large")
    before = local.cache.state.head.epoch
    await scene.count(lambda: local.changes.apply(GroupDraft.request_plan))
    assert local.cache.state.head.epoch > before


async def serve_members(scene: Scene) -> None:
    """The members name none of their partitions."""
    local = await scene.open_group("large")
    for number in range(1, LIMITED + 1):
        await local.heartbeat(f"{number}-secret", CREDENTIAL, Heartbeat(), None, must_answer=True)
    for _ in range(3):
        await scene.count(local.do_due_work)


async def join_at_once(scene: Scene) -> None:
    join = partial(scene.service.groups.join, APP, "single", JoinRequest((), ("h*",), CREDENTIAL))
    await scene.count(lambda: asyncio.gather(*(join() for _ in range(20))))


async def show_group(scene: Scene) -> None:
    shown = await scene.ask("GET", "/_groups/large")
    assert len(shown.json["queues"]) == 100
    await scene.ask("GET", "/_groups/large", query="lag=1")


def send_heartbeat(name: Callable[[str], str] | None) -> Callable[[Scene], Awaitable[None]]:
    """Returns a heartbeat of a member with all partitions of the plan, which names these, or others, or none."""

    async def send(scene: Scene) -> None:
        local = await scene.open_group("single")
        state = local.cache.state
        named = {name(queue.name): {1: state.head.epoch} for queue in state.plan.values()} if name else {}
        await scene.ask("POST", "/_groups/single/members/1-secret", {"owned": named})

    return send


def post(queue: str, messages: list[dict[str, str]], **headers: str) -> Callable[[Scene], Awaitable[None]]:
    async def send(scene: Scene) -> None:
        await scene.ask("POST", f"/{queue}", {"messages": messages}, **headers)

    return send


async def fill_queue(scene: Scene, queue: str, key: str = "") -> None:
    """Posts ``WAITING`` messages, with a key each: the given one, or of their own."""
    for first in range(0, WAITING, 1_000):
        keys = (key or f"k{number}" for number in range(first, first + 1_000))
        reply = await scene.prepare(
            "POST", f"/{queue}", {"messages": [{"body": "x", "message_key": key} for key in keys]}
        )
        assert reply.status == 201


async def claim_keyed(scene: Scene) -> None:
    await fill_queue(scene, "keyed")
    for _ in range(3):
        await scene.ask("POST", "/keyed/claims", query="limit=1000&ttl=300")


async def claim_busy_keys(scene: Scene) -> None:
    """All messages have one key, of which one may be claimed."""
    await fill_queue(scene, "keyed", "same")
    await scene.ask("POST", "/keyed/claims", query="limit=1000&ttl=300")


async def renew_one_key(scene: Scene) -> None:
    await fill_queue(scene, "ordered", "same")
    claimed = await scene.ask("POST", "/ordered/claims", query="limit=1000&ttl=300")
    receipts = [message["receipt"] for message in claimed.json["messages"]]
    assert len(receipts) > 500
    await scene.ask("POST", "/ordered/claims/renew", {"receipts": receipts, "ttl": 600})
    await scene.ask("POST", "/ordered/claims/release", {"receipts": receipts, "delay": 60})


async def count_claims(scene: Scene) -> None:
    for _ in range(WAITING // 1_000):
        await scene.prepare("POST", "/counted", {"messages": [{"body": "x"}] * 1_000})
        claimed = await scene.prepare("POST", "/counted/claims", query="limit=1000&ttl=300")
    for view in ("size", "backlog", "claims", "jobs", "explain"):
        await scene.ask("GET", f"/counted/{view}")
    receipts = [message["receipt"] for message in claimed.json["messages"]]
    await scene.ask("POST", "/counted/claims/ack", {"receipts": receipts})


async def follow_queues(scene: Scene) -> None:
    names = [f"g{number:05}" + "a" * 44 for number in range(1_000)]
    await scene.ask("POST", "/_stream", {"queues": names, "read_marks": True})
    await scene.ask("POST", "/_unread", {"queues": names})
    await scene.ask("GET", "", query="include_count=1&limit=10000")


COMPUTATIONS: dict[str, Callable[[Scene], Awaitable[None]]] = {
    "queues that match patterns": search_queues,
    "plan": plan_group,
    "hand-overs and wake-ups": serve_members,
    "joins": join_at_once,
    "view of a group": show_group,
    "heartbeat without partitions": send_heartbeat(None),
    "heartbeat": send_heartbeat(str),
    "heartbeat with foreign queues": send_heartbeat("x{}".format),
    "batch": post("plain", FULL_BATCH),
    "batch with a key": post("plain", FULL_BATCH, idempotency_key="a"),
    "batch without duplicates": post("dedup", FULL_BATCH),
    "claims of keys": claim_keyed,
    "claims of one key": claim_busy_keys,
    "renewals of one key": renew_one_key,
    "figures of claims": count_claims,
    "queues of a stream": follow_queues,
}
"""What a tenant can make long in the loop, beside what a view does in a thread as a whole."""


@pytest.mark.needs_histories
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_turns_are_short(filled: SqliteLocation, name: str) -> None:
    """At the limits of what a tenant may store and ask for, the longest turn of the loop has few steps."""
    meter = TurnMeter()
    store = filled.open()
    app = make_app(store, limits=Limits(), core=StepCore(meter), clock=lambda: 0.0)
    run = make_runner(app, threads=4, waiters=128, max_body=Limits().max_batch_bytes, page_bytes=Limits().page_bytes)

    async def act(gateway: Gateway) -> None:
        await COMPUTATIONS[name](Scene(store, gateway, app.service, meter))
        await app.service.groups.end()

    run(act)
    store.close()
    assert meter.steps > 1_000
    assert meter.longest.total() <= MAX_STEPS, meter.longest.most_common(5)
