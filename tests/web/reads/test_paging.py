"""Paging in any way returns exactly the messages of a single read."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuey.ids import LOW_MIN, parse_instant, to_hex
from tests.web.caller import Caller

names = count()

places = st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(0, 2))
"""Partition, second and end of the id: close together, so that ids are often equal across partitions."""

queries = st.fixed_dictionaries(
    {
        "order": st.sampled_from(["ascending", "descending"]),
        "partitions": st.sampled_from(["1", "*", "1,2,3", "3,1", "2,2,9", ""]),
        "merge": st.booleans(),
    },
    optional={
        "after": st.integers(-1, 13),
        "before": st.integers(-1, 13),
        "until": st.integers(-1, 13),
        "since": st.integers(-1, 13),
    },
)


def id_at(second: int, number: int = 0) -> str:
    ticks = parse_instant(str(1_700_000_000 + second))
    assert ticks is not None
    return to_hex((ticks, LOW_MIN + number))


def texts(query: dict[str, Any]) -> dict[str, str]:
    return {
        key: id_at(value) if isinstance(value, int) and key != "merge" else str(value) for key, value in query.items()
    }


def make_filled_queue(owner: Caller, content: set[tuple[int, int, int]]) -> str:
    queue = owner.create(f"q{next(names)}", partitions=3)
    ids = ",".join(f"{partition}:{id_at(second, number)}" for partition, second, number in content)
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
    if not query["merge"]:
        paged = [name for number in whole["next"] for name in paged if name.startswith(f"{number}:")]
    assert paged == shown(whole)
