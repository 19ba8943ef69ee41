"""Consumer offsets: record, show, list, delete."""

from __future__ import annotations

import pytest

from tests.backends import Clock
from tests.web.caller import Caller

pytestmark = pytest.mark.one_app


@pytest.fixture
def keys(owner: Caller) -> list[str]:
    """Four ids in partition 1 of a queue q with two partitions."""
    owner.create("q", partitions=2)
    return [m["key"] for m in owner.batch("q", *({"body": "x", "partition": 1} for _ in range(4))).messages]


def test_record_and_show(owner: Caller, keys: list[str], clock: Clock) -> None:
    """What was recorded is shown for every partition, with what lies ahead of it."""
    content = {"partitions": {"1": {"offset": keys[1].upper()}}}
    recorded = owner.send_json("PUT", "q/offsets/g", content).json
    assert recorded == {"status": "ok", "group": "g", "partitions": {"1": {"offset": keys[1]}}}
    clock.advance(30)
    shown = owner.get("q/offsets/g").json
    assert (shown["group"], shown["lag"]) == ("g", 2)
    first, second = shown["partitions"]["1"], shown["partitions"]["2"]
    assert (first["offset"], first["lag"], first["lag_exact"]) == (keys[1], 2, True)
    assert first["lag_seconds"] == pytest.approx(30, abs=0.5)
    assert second == {"offset": None, "updated": None, "lag": 0, "lag_exact": True, "lag_seconds": 0.0}


@pytest.mark.parametrize("group", ["a b", "ä", "x" * 101, "a%0Ab", "~user"])
def test_group_names(owner: Caller, keys: list[str], group: str) -> None:
    """Only a valid group name can have offsets or members; reading another one finds nothing."""
    content = {"partitions": {"1": {"offset": keys[0]}}}
    name = f"{''.join(f'%{byte:02X}' for byte in group.encode()) if '%' not in group else group}"
    joined = owner.send_json("POST", f"_groups/{name}/members", {"queues": ["q"]})
    for reply in (owner.send_json("PUT", f"q/offsets/{name}", content), joined):
        assert (reply.status, list(reply.errors)) == (400, ["group"])
    assert owner.get(f"q/offsets/{name}").status == 404


def test_every_bad_offset_is_named(owner: Caller, keys: list[str]) -> None:
    """All bad partitions and offsets are reported together, and nothing is recorded."""
    reply = owner.send_json(
        "PUT",
        "q/offsets/g",
        {
            "partitions": {
                "1": {"offset": keys[0]},
                "x": {"offset": keys[0]},
                "2": {"offset": "now", "expected": 5},
                "3": {},
                "4": keys[0],
                "9" * 50: {"offset": keys[0]},
            }
        },
    )
    assert reply.status == 400
    assert reply.errors == {
        "partitions.x": '"x" is not a partition',
        "partitions.2.offset": '"now" is not a message id',
        "partitions.2.expected": '"5" is not a message id',
        "partitions.3.offset": "Required",
        "partitions.4": f'"{keys[0]}" is not an object',
        f"partitions.{'9' * 40}": f'"{"9" * 40}" is not a partition',
    }
    assert owner.get("q/offsets").json["groups"] == []


def test_partitions_must_exist_and_be_named_once(owner: Caller, keys: list[str]) -> None:
    """A partition beyond the queue's, or the same one in two spellings, is refused."""
    for numbers in (["3"], ["0"], ["1", "01"]):
        content = {"partitions": {number: {"offset": keys[0]} for number in numbers}}
        assert owner.send_json("PUT", "q/offsets/g", content).status == 400
    assert owner.get("q/offsets").json["groups"] == []


def lag(caller: Caller, **cursors: str | None) -> dict[str, tuple[int, bool]]:
    """Returns the lag behind cursors; partitions are written as p1=…."""
    content = {"partitions": {name[1:]: value for name, value in cursors.items()}}
    reply = caller.send_json("POST", "q/lag", content).json
    assert reply["lag"] == sum(each["lag"] for each in reply["partitions"].values())
    return {number: (each["lag"], each["lag_exact"]) for number, each in reply["partitions"].items()}


def test_lag_behind_any_cursor(owner: Caller, keys: list[str], clock: Clock) -> None:
    """Lag is counted behind any caller's cursors: null is before everything; other partitions do not count."""
    assert lag(owner, p1=keys[1].upper()) == {"1": (2, True)}
    assert lag(owner, p2=None, p1=None) == {"1": (4, True), "2": (0, True)}
    assert lag(owner) == {}
    clock.advance(30)
    shown = owner.send_json("POST", "q/lag", {"partitions": {"1": keys[2]}}).json
    assert shown["partitions"]["1"]["lag_seconds"] == pytest.approx(30, abs=0.5)
    assert owner.get("q/offsets").json["groups"] == []
