"""Reading ranges of one queue: parameters, order, bounds, cursors."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.model.ids import LOW_MIN, parse_instant, parse_position, to_hex
from queuey.runtime.limits import Limits
from tests.backends import Clock
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app

PAST = 1_517_363_399
"""Seconds since 1970, long before the test."""


def place(second: int, number: int = 0) -> str:
    ticks = parse_instant(str(PAST + second))
    assert ticks is not None
    return to_hex((ticks, LOW_MIN + number))


def iso(second: int, hours: int = 0) -> str:
    return datetime.fromtimestamp(PAST + second, timezone(timedelta(hours=hours))).isoformat()


@pytest.fixture
def queue(owner: Caller) -> str:
    """A queue with one message a second, 0 to 4, in partition 1, and two in partition 2."""
    owner.create("q", partitions=3)
    for second in range(5):
        owner("PUT", f"q/{place(second)}", str(second), headers={"X-TTL": "33554432"})
    for second in (1, 3):
        owner("PUT", f"q/2:{place(second, 1)}", f"{second}b", headers={"X-TTL": "33554432"})
    return "q"


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ({}, "0 1 2 3 4"),
        ({"order": "descending"}, "4 3 2 1 0"),
        ({"since": place(2)}, "2 3 4"),
        ({"since": place(2), "order": "descending"}, "2 1 0"),
        ({"since": str(PAST + 2)}, "2 3 4"),
        ({"since": f"{PAST + 1}.9999999"}, "2 3 4"),
        ({"since": f"{PAST + 2}.0000001"}, "3 4"),
        ({"since": f"{place(2)[:8]}-{place(2)[8:12]}-{place(2)[12:16]}-{place(2)[16:20]}-{place(2)[20:]}"}, "2 3 4"),
        ({"since": place(1), "after": place(1), "before": place(4), "until": place(3)}, "2 3"),
        ({"since": iso(2)}, "2 3 4"),
        ({"since": iso(2, hours=5), "until": iso(3).replace("+00:00", "Z")}, "2 3"),
        ({"partitions": "2,1", "limit": "1"}, "1b 0"),
        ({"partitions": "*", "since": place(3)}, "3 4 3b"),
        ({"partitions": ""}, ""),
        ({"partitions": "1,2", "since": f"1:{place(3)},2:{place(2)}"}, "3 4 3b"),
        ({"partitions": "1,2", "since": f"2:{place(2)}", "order": "descending"}, "1b"),
        ({"partitions": "1,2", "until": f"1:{place(0)},2:{place(2)}"}, "0 1b"),
        ({"partitions": "*", "merge": "1", "limit": "4"}, "0 1 1b 2"),
        ({"partitions": "*", "merge": "0", "limit": "1"}, "0 1b"),
    ],
    ids=str,
)
def test_what_a_read_gives(owner: Caller, queue: str, query: dict[str, str], bodies: str) -> None:
    """Each combination of parameters gives exactly these messages in this order."""
    reply = owner.get(queue, **query)
    assert reply.bodies == bodies.split()


@pytest.mark.parametrize("partitions", ["4", "1,4", "0", "99999999999"])
def test_a_partition_that_the_queue_does_not_have(owner: Caller, queue: str, partitions: str) -> None:
    """It is an error that says which ones the queue has; of several queues, only this one gets it."""
    text = "Queue 'q' has partition numbers 1 to 3"
    reply = owner.get(queue, partitions=partitions)
    assert (reply.status, reply.errors) == (400, {"partitions": text})
    ranges = [{"queue_name": queue, "partitions": partitions}, {"queue_name": queue, "limit": 1}]
    bad, good = owner.send_json("POST", "_read", {"queues": ranges}).json["queues"]
    assert bad == {"status": "error", "queue_name": queue, "error_msg": {"partitions": text}}
    assert len(good["messages"]) == 1


@pytest.mark.parametrize(
    ("partitions", "left_out"),
    [
        (None, {"partitions": 3, "read": [1]}),
        ("2,1,2", {"partitions": 3, "read": [2, 1]}),
        ("1,2,3", {}),
        ("*", {}),
    ],
)
def test_an_answer_says_that_it_left_partitions_out(
    owner: Caller, queue: str, partitions: str | None, left_out: dict[str, Any]
) -> None:
    for merge in (False, True):
        content = owner.get(queue, merge=merge, **({} if partitions is None else {"partitions": partitions})).json
        assert {name: content[name] for name in ("partitions", "read") if name in content} == left_out
    owner.create("single")
    assert "read" not in owner.get("single").json


@pytest.mark.parametrize("since", ["2026-12-01T09:30", "2026-12-01", "1969-12-01T09:30Z", "2026-13-01T09:30Z", "T"])
def test_a_time_without_a_zone_is_refused(owner: Caller, queue: str, since: str) -> None:
    reply = owner.get(queue, since=since)
    assert (reply.status, list(reply.errors)) == (400, ["since"])


def test_answer_has_horizon_and_cursors(owner: Caller, queue: str) -> None:
    """Every answer says what it considered and where to continue, per partition and as one text."""
    content = owner.get(queue, partitions="1,2,3", limit="2").json
    assert content.keys() == {"status", "messages", "horizon", "next", "cursor", "more"}
    assert content["next"].keys() == {"1", "2", "3"}
    assert content["cursor"] == ",".join(f"{number}:{at}" for number, at in content["next"].items())
    assert content["more"] is True
    assert parse_position(content["next"]["3"]) <= parse_position(content["horizon"])
    assert owner.get(queue, partitions="1,2,3", since=content["cursor"]).bodies == ["2", "3", "4"]


def test_read_delay_holds_back_and_delay_0_does_not(owner: Caller, clock: Clock) -> None:
    """A queue's read delay hides younger messages; delay=0 shows them and says that its cursor is not safe."""
    owner.create("q", read_delay=10)
    owner.post("q", "young")
    assert owner.get("q").bodies == []
    early = owner.get("q", delay="0")
    assert (early.bodies, early.json["cursor_safe"]) == (["young"], False)
    assert "cursor_safe" not in owner.get("q", delay="1").json
    clock.advance(11)
    assert owner.get("q").bodies == ["young"]


def test_default_limit(owner: Caller, limits: Limits) -> None:
    """Without a limit a read gives 100 messages per partition."""
    owner.create("q", partitions=2)
    for partition in (1, 2, 1, 2, 1, 2):
        owner.batch("q", *[{"body": "x", "partition": partition}] * limits.max_batch)
    reply = owner.get("q", partitions="*")
    assert (len(reply.messages), reply.json["more"]) == (200, True)
    assert len(owner.get("q", partitions="*", limit=1000).messages) == 300


def test_timestamps_are_exact(owner: Caller) -> None:
    """A timestamp is its id's time to the last digit, also before 1970 and in the far future."""
    owner.create("q")
    for text in ("0.0000000", "-1.5000000", "-0.0000001", "1.0000001", "100000000000.9999999", "-12219292800.0000000"):
        ticks = int(Decimal(text) * 10**7) + 0x01B21DD213814000
        name = to_hex((ticks, LOW_MIN))
        assert owner("PUT", f"q/{name}", "x").status == 200
        [message] = owner.get(f"q/{name}").messages
        assert (message["message_id"], message["timestamp"]) == (name, text)


def test_ids_and_times_of_a_page_are_each_their_own(owner: Caller) -> None:
    """Messages that share seconds, id parts or metadata with their neighbours are still shown with their own."""
    owner.create("q", partitions=2)
    base = parse_position(place(0))[0]
    offsets = (0, 1, 9_999_999, 10_000_000, 10_000_001, 1 << 32, (1 << 32) + 1, 1 << 33)
    expected = []
    for number, offset in enumerate(offsets):
        name = to_hex((base + offset, LOW_MIN + number % 3))
        kind = ("text/a", "text/b")[number // 2 % 2]
        owner("PUT", f"q/{name}", f"{number}", headers={"Content-Type": kind, "X-TTL": "33554432"})
        expected.append((name, f"{number}", kind))
    messages = owner.get("q").messages
    assert [(m["message_id"], m["body"], m["content_type"]) for m in messages] == expected
    times = [Decimal(m["timestamp"]) for m in messages]
    assert [int((time - PAST) * 10**7) for time in times] == list(offsets)


# Paging in any way returns exactly the messages of a single read


names = count()

places = st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 2))
"""Partition, second and end of the id: close together, so that ids are often equal across partitions."""

queries = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["ascending", "descending"]),
        "partitions": st.sampled_from(["1", "*", "1,2,3", "3,1", "2,2", ""]),
        "merge": st.booleans(),
    },
    optional={
        "after": st.integers(-1, 13),
        "before": st.integers(-1, 13),
        "until": st.integers(-1, 13),
        "since": st.integers(-1, 13),
    },
)


def texts(query: dict[str, Any]) -> dict[str, str]:
    return {
        key: place(value) if isinstance(value, int) and key != "merge" else str(value) for key, value in query.items()
    }


def make_filled_queue(owner: Caller, content: set[tuple[int, int, int]]) -> str:
    queue = owner.create(f"q{next(names)}", partitions=3)
    ids = ",".join(f"{partition}:{place(second, number)}" for partition, second, number in content)
    if ids:
        assert owner("PUT", f"{queue}/{ids}", "x", headers={"X-TTL": "33554432"}).status == 200
    return queue


def shown(page: dict[str, Any]) -> list[str]:
    return [f"{message['partition']}:{message['message_id']}" for message in page["messages"]]


@pytest.mark.parametrize("bound", ["since", "after"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("instant", ["103072857660.6846975", "999999999999"], ids=["last", "beyond"])
def test_a_cursor_from_the_end_of_time_comes_back(owner: Caller, bound: str, order: str, instant: str) -> None:
    """An instant at or past the last possible id gives a cursor that is accepted like any other."""
    queue = owner.create("q")
    cursor = owner.get(queue, order=order, **{bound: instant}).json["cursor"]
    assert owner.get(queue, order=order, since=cursor).json["messages"] == []


@given(content=st.sets(places, max_size=25), query=queries, limit=st.integers(1, 7))
def test_pages_are_the_whole(
    owner: Caller, content: set[tuple[int, int, int]], query: dict[str, Any], limit: int
) -> None:
    """Following the cursor with any limit, order, partitions, bounds and merging loses and repeats nothing."""
    queue = make_filled_queue(owner, content)
    parameters = texts(query)
    whole = owner.get(queue, **parameters, limit="1000").json
    assert whole["more"] is False
    paged: list[str] = []
    page = owner.get(queue, **parameters, limit=str(limit)).json
    for _ in range(len(content) + 2):
        paged += shown(page)
        if not page["more"]:
            break
        page = owner.get(queue, **(parameters | {"since": page["cursor"]}), limit=str(limit)).json
    assert not page["more"]
    assert query["order"] == "ascending" or set(page["next"].values()) <= {None}
    if not query["merge"]:
        paged = [name for number in whole["next"] for name in paged if name.startswith(f"{number}:")]
    assert paged == shown(whole)
