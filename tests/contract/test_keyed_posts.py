"""Posts with idempotency keys are stored once, however often and wherever they are repeated."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from queuey.app.service import Service
from queuey.messages.posts import AnyDraft, Draft, PlainDraft, RepeatBudget
from queuey.model.errors import InvalidRequest, KeyInUse, KeyReused, StoreClosed, StoreUnavailable
from queuey.model.messages import NewMessage, PostKey, PostResult, Queue
from queuey.storage import KeyedPosts, Store, bridge
from tests.contract.samples import (
    append_bodies,
    begin_post,
    bodies_in_partition,
    call_concurrently,
    eventually,
    make_queue,
    messages_in_partition,
    new_message,
)
from tests.interposed_store import InterposedStore
from tests.waiting import join

_keys = itertools.count(1)


def fresh_key(*, content: bytes = b"content", seconds: int = 3600) -> PostKey:
    return PostKey(f"key-{next(_keys)}", content, seconds)


def post_once(store: Store, queue: Queue, key: PostKey, *bodies: str) -> PostResult:
    return bridge.run(store.keyed_posts.append_once(queue, [new_message(body) for body in bodies or ("x",)], key))


def post_patiently(store: Store, queue: Queue, key: PostKey, *bodies: str) -> PostResult:
    """Posts messages under a key as a client does: it retries while another post is in flight."""
    results: list[PostResult] = []

    def settled() -> bool:
        try:
            results.append(post_once(store, queue, key, *bodies))
        except KeyInUse as error:
            assert error.retry_after > 0  # noqa: PT017 - it is retried
            return False
        return True

    assert eventually(settled, 60)
    return results[0]


def test_repeated(store: Store, other: Store) -> None:
    """A post that is repeated by any process returns the stored messages, is marked as repeated, and stores nothing."""
    queue, key = make_queue(store), fresh_key()
    first = post_once(store, queue, key, "a", "b")
    assert not first.replayed
    assert [partition for partition, _ in first.locations] == [1, 1]
    for handle in (store, other, store):
        assert post_once(handle, queue, key, "a", "b") == PostResult(first.locations, replayed=True)
    assert [(message.partition, message.position) for message in messages_in_partition(other, queue)] == first.locations
    assert bodies_in_partition(other, queue) == ["a", "b"]


def test_batches_of_all_kinds(store: Store, other: Store) -> None:
    """A batch over several partitions, with delays, TTLs and bytes, is stored completely and returned in order."""
    queue, key = make_queue(store, partitions=3), fresh_key()
    items = [
        new_message(
            f"{n}" if n % 2 else b"\xff%d" % n, partition=n % 3 + 1, delay=n % 5 // 4 * 60.0, ttl=(60, 700_000)[n % 2]
        )
        for n in range(40)
    ]
    first = bridge.run(store.keyed_posts.append_once(queue, items, key))
    assert [partition for partition, _ in first.locations] == [item.partition for item in items]
    assert [message.body for message in bridge.run(other.messages.fetch(queue, first.locations))] == [
        item.body for item in items
    ]
    elsewhere = [new_message(item.body, partition=(item.partition + 1) % 3 + 1) for item in items]
    assert bridge.run(other.keyed_posts.append_once(queue, elsewhere, key)) == PostResult(
        first.locations, replayed=True
    )
    assert sum(info.count for info in bridge.run(store.messages.inspect(queue))[1]) == len(items)


def test_keys_do_not_mix(store: Store) -> None:
    """Each key of each queue has its own post; messages without a key are not affected."""
    queues, keys = [make_queue(store) for _ in range(2)], [fresh_key() for _ in range(2)]
    for queue in queues:
        append_bodies(store, queue, "no key")
        for key in keys:
            assert not post_once(store, queue, key, key.text).replayed
        assert bodies_in_partition(store, queue) == ["no key", *(key.text for key in keys)]


def test_another_post(store: Store, other: Store) -> None:
    """A different content under a used key is refused everywhere, stores nothing, and does not change the key."""
    queue, key = make_queue(store), fresh_key()
    first = post_once(store, queue, key, "a")
    for handle in (store, other):
        with pytest.raises(KeyReused):
            post_once(handle, queue, PostKey(key.text, b"another", 3600), "b")
    assert post_once(other, queue, key, "a").locations == first.locations
    assert bodies_in_partition(store, queue) == ["a"]


def test_after_the_message_is_gone(store: Store) -> None:
    """A repeated post has its first answer also after the message was deleted."""
    queue, key = make_queue(store), fresh_key()
    first = post_once(store, queue, key)
    bridge.run(store.messages.delete(queue, first.locations))
    assert post_once(store, queue, key) == PostResult(first.locations, replayed=True)
    assert messages_in_partition(store, queue) == []


def test_purged_and_deleted(store: Store) -> None:
    """A purge and a delete forget the keys of the queue's messages."""
    queue, key = make_queue(store), fresh_key()
    post_once(store, queue, key, "a")
    purged = bridge.run(store.catalogue.purge_queue(queue))
    assert not post_once(store, purged, key, "b").replayed
    assert bodies_in_partition(store, purged) == ["b"]
    bridge.run(store.catalogue.delete_queue(purged))
    again = make_queue(store, queue.name)
    assert not post_once(store, again, key, "c").replayed
    assert bodies_in_partition(store, again) == ["c"]


def test_forgotten_in_time(store: Store) -> None:
    """A key is forgotten some time after its seconds are over, and can be used again."""
    try:
        check_that_a_key_is_forgotten(store, fresh_key(seconds=1))
    except StoreUnavailable:  # On a busy machine a post took longer than a second.
        check_that_a_key_is_forgotten(store, fresh_key(seconds=20))


def check_that_a_key_is_forgotten(store: Store, key: PostKey) -> None:
    """Posts again until it counts as new.

    Replays before that return the first locations, and both messages are stored.
    """
    queue = make_queue(store)
    first = post_once(store, queue, key)
    results: list[PostResult] = []

    def forgotten() -> bool:
        results.append(post_once(store, queue, key))
        return not results[-1].replayed

    assert eventually(forgotten, 60)
    assert all(result.locations == first.locations for result in results[:-1])
    assert [(message.partition, message.position) for message in messages_in_partition(store, queue)] == [
        *first.locations,
        *results[-1].locations,
    ]


def test_bad_input(store: Store) -> None:
    """A refused post leaves its key unused."""
    queue, key = make_queue(store), fresh_key()
    with pytest.raises(InvalidRequest):
        bridge.run(store.keyed_posts.append_once(queue, [new_message("a"), new_message("b", partition=2)], key))
    with pytest.raises(InvalidRequest):
        bridge.run(store.keyed_posts.append_once(queue, [new_message("a")], key, after=((1 << 60) - 1, 0)))
    assert messages_in_partition(store, queue) == []
    assert not post_once(store, queue, key).replayed


def test_above_an_id(store: Store, other: Store) -> None:
    """The ids of a post with a key are above ``after``, as those of any other."""
    queue = make_queue(store)
    after = None
    for n in range(6):
        result = bridge.run(
            (store, other)[n % 2].keyed_posts.append_once(queue, [new_message(str(n))], fresh_key(), after=after)
        )
        after = result.locations[0][1]
    assert bodies_in_partition(store, queue) == [str(n) for n in range(6)]


def test_racing_posts(store: Store, other: Store) -> None:
    """One of many simultaneous posts with one key, through several stores, is stored; all that succeed agree."""
    queue = make_queue(store, partitions=2)
    keys = [fresh_key() for _ in range(3)]

    def post(number: int) -> tuple[PostKey, PostResult]:
        key = keys[number % 3]
        return key, post_patiently((store, other)[number // 3 % 2], queue, key, key.text, f"{key.text} too")

    results = call_concurrently(post, range(18))
    for key in keys:
        mine = [result for one, result in results if one == key]
        assert len({tuple(result.locations) for result in mine}) == 1
        assert sum(not result.replayed for result in mine) == 1
    expected = sorted(text for key in keys for text in (key.text, f"{key.text} too"))
    assert sorted(map(str, bodies_in_partition(store, queue))) == expected


def test_giving_up(store: Store) -> None:
    """A cancelled post can be repeated with its key, whatever its outcome was."""
    queue = make_queue(store)
    keys = [fresh_key() for _ in range(20)]
    outcomes = [begin_post(store, queue, [new_message(key.text)], key).give_up() for key in keys]
    for key, outcome in zip(keys, outcomes, strict=True):
        assert post_patiently(store, queue, key, key.text).replayed or outcome is not None
    assert sorted(map(str, bodies_in_partition(store, queue))) == sorted(key.text for key in keys)


def test_closing(store: Store, open_store: Callable[[], Store]) -> None:
    """Every post that was begun is answered when its store is closed, and can be repeated in another."""
    queue = make_queue(store)
    closing = open_store()
    assert bridge.run(closing.catalogue.queue(queue.application, queue.name)) == queue
    keys = [fresh_key() for _ in range(20)]
    answers = [begin_post(closing, queue, [new_message(key.text)], key) for key in keys]
    closer = threading.Thread(target=closing.close)
    closer.start()
    for key, answer in zip(keys, answers, strict=True):
        try:
            answer.result(60)
        except StoreUnavailable as error:
            assert error.outcome in {"none", "unknown"}  # noqa: PT017
        post_patiently(store, queue, key, key.text)
    join(closer)
    assert sorted(map(str, bodies_in_partition(store, queue))) == sorted(key.text for key in keys)
    with pytest.raises(StoreClosed):
        post_once(closing, queue, fresh_key())


@pytest.mark.parametrize("kind", [PlainDraft, Draft])
def test_what_a_key_stands_for(store: Store, kind: Callable[..., AnyDraft]) -> None:
    """The content of a keyed post is the caller's message, however it was decoded, without additions of the service."""
    between, keys = InterposedStore(store), []

    def append_once(queue: Queue, items: Sequence[NewMessage], key: PostKey, **named: Any) -> PostResult:  # noqa: ANN401
        keys.append(key)
        return bridge.run(store.keyed_posts.append_once(queue, items, key, **named))

    between.instead(KeyedPosts.append_once, append_once)
    service, queue = Service(between.store), make_queue(store, partitions=4, ttl=60)
    access, drafts = service.queues.access_unchecked(queue), (kind("a"), kind("b", 9, 2))
    result = service.core.run(access.apply(lambda queue: service.messages.post(queue, drafts, key="mine")))
    assert [key.content.hex() for key in keys] == ["39d753992eb7326cd28e2b49e19710b6"]
    assert result.locations[1][0] == 2
    assert not result.replayed


def test_few_posts_are_repeated() -> None:
    """One undone post is repeated per second, or a tenth of that second's posts; earlier seconds do not count."""
    budget = RepeatBudget()
    assert [budget.try_acquire(10.0) for _ in range(3)] == [True, False, False]
    assert not budget.try_acquire(10.999)
    assert budget.try_acquire(11.0)
    for number in range(100):
        budget.record_post(11.5 + number / 1000)
    assert sum(budget.try_acquire(11.6) for _ in range(20)) == 9
    assert sum(budget.try_acquire(12.1) for _ in range(20)) == 1
    assert budget.repeated == 12
