"""Arguments and results of tasks come back as they were, or their types are refused when the task is defined."""

from __future__ import annotations

import collections
import dataclasses
import enum
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest

from qdo import Jobs
from qdo.errors import InvalidArgument
from queuey.client import Client
from tests.qdo.worker.conftest import Workers


class Color(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Rights(enum.Flag):
    READ, WRITE = 1, 2


@dataclasses.dataclass
class Order:
    pieces: dict[int, str]
    at: datetime


class Crate(msgspec.Struct):
    sizes: tuple[int, ...]
    inner: Crate | None = None


class Options(TypedDict):
    unit: str


class Pair(NamedTuple):
    one: int
    two: str


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
KEPT: list[tuple[Any, Any]] = [
    (int, 2**70),
    (str, "\u202e"),
    (Any, {"a": [1, None]}),
    (dict[int, dict[float, list[int]]], {1: {2.5: [3]}}),
    (dict[int, str] | None, {1: "a"}),
    (Optional[dict[int, str]], {1: "a"}),  # noqa: UP045 - users may write it
    (Mapping[int, str], {1: "a"}),
    (dict[Color, int], {Color.RED: 1}),
    (dict[date, int], {date(2026, 1, 1): 1}),
    (dict[bytes, int], {b"a": 1}),
    (Sequence[int], [1]),
    (tuple, (1, 2)),
    (tuple[int, str], (1, "a")),
    (set[int], {1}),
    (bytes, b"\xff"),
    (bytearray, bytearray(b"\xff")),
    (datetime, MOMENT),
    (datetime, MOMENT.replace(tzinfo=None)),
    (time, time.min),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Decimal, Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=5)),
    (Color, Color.RED),
    (Number, Number.ONE),
    (Rights, Rights.READ | Rights.WRITE),
    (Literal["a", 1], 1),
    (int | date, date(2026, 1, 1)),
    (Order, Order({1: "a"}, MOMENT)),
    (Crate, Crate((1, 2), Crate(()))),
    (Options, {"unit": "kg"}),
    (Pair, Pair(1, "a")),
]
"""Types of parameters and results, and values of them."""

REFUSED: list[Any] = [
    complex,
    Path,
    range,
    Callable,
    Iterable[int],
    type[int],
    collections.OrderedDict,
    collections.defaultdict[int, str],
    list[Path],
    dict[str, complex],
    Path | None,
    str | date,
    Exception,
]


def make_echo(kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type
    def echo(value: Any) -> Any:  # noqa: ANN401 - any value
        return value

    echo.__annotations__ = {"value": kind, "return": kind}
    return echo


def is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


@pytest.fixture
async def jobs(workers: Workers, client: Client) -> Jobs:
    return Jobs((await workers.system.queue(result_ttl=60)).name, client=client)


async def test_values_come_back_as_they_were(jobs: Jobs, client: Client) -> None:
    """An argument arrives as its parameter's type has it, and a result comes back as the task's type has it."""
    received: list[object] = []

    def keep(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(value: Any) -> Any:  # noqa: ANN401 - any value
            received.append(value)
            return function(value)

        call.__annotations__ = function.__annotations__
        return call

    tasks = [jobs.task(name=f"echo-{at}")(keep(make_echo(kind))) for at, (kind, _) in enumerate(KEPT)]
    half = len(KEPT) // 2
    receipts = [task.send(value) for task, (_, value) in zip(tasks[:half], KEPT[:half], strict=True)]
    calls = [task.call(value) for task, (_, value) in zip(tasks[half:], KEPT[half:], strict=True)]
    receipts += jobs.send_many(calls)
    assert jobs.run_all() == len(KEPT)
    values = [value for _, value in KEPT]
    assert [pair for pair in zip(values, received, strict=True) if not is_same(*pair)] == []
    results = [receipt.result(timeout=10) for receipt in receipts]
    assert [pair for pair in zip(values, results, strict=True) if not is_same(*pair)] == []
    [plain] = client.job_queue(jobs.queues[0]).status(receipts[KEPT.index((bytes, b"\xff"))])
    assert plain.result == "/w=="


@pytest.mark.parametrize("kind", REFUSED, ids=str)
@pytest.mark.parametrize("where", ["value", "return"])
def test_types_that_json_cannot_carry(kind: Any, where: str) -> None:  # noqa: ANN401 - a type
    """A parameter or a result of such a type is refused when the task is defined; the error names task and place."""
    function = make_echo(Any)
    function.__annotations__[where] = kind
    place = "the result" if where == "return" else "parameter value"
    with pytest.raises(InvalidArgument, match=f"the type of {place} of task echo has no JSON form: .+"):
        Jobs("q").task(function)


def test_types_that_are_defined_later() -> None:
    """A task may name a class that its module defines below it: its type is checked with the first call."""

    def task(value: Later) -> Later:  # type: ignore[name-defined]  # noqa: F821 - on purpose
        return value

    task.__globals__.pop("Later", None)
    jobs = Jobs("q")
    later = jobs.task(task)
    task.__globals__["Later"] = Pair
    call = later.call(Pair(1, "a"))
    assert call.returns is Pair
