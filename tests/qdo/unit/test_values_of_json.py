"""Values that JSON does not carry: each arrives as it was sent, or is refused where it is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdo import InvalidArgument, Jobs, Task
from qdo.tasks.tasks import Invocation
from qdo.worker.handlers import set_state, state_setter
from queuey.client import InvalidArgument as Refused
from queuey.client import Outgoing
from queuey.client.calls import claim_calls, send_calls, service_calls


class Color(Enum):
    """A choice."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    """A record."""

    width: float
    height: float


class Options(TypedDict):
    at: datetime
    size: Any


NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40, True, -0.0, math.nan, math.inf, -math.inf]),
    st.floats(),
)
TEXTS = st.one_of(st.text(), st.sampled_from(["\ud800", "\udfff\ud800", "\u0000", "😀"]))
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
VALUES = st.one_of(
    *(PLAIN, st.binary(), st.sets(st.integers(-9, 9)), st.frozensets(st.text(max_size=2)), st.decimals()),
    *(st.lists(st.integers()).map(tuple), st.datetimes(), st.dates(), st.timedeltas(timedelta(-99), timedelta(99))),
    *(st.uuids(), st.sampled_from(Color), st.builds(Size, st.floats(), st.floats())),
)
ANY = st.one_of(
    VALUES,
    st.lists(VALUES, max_size=3),
    st.dictionaries(TEXTS | st.integers() | st.none() | st.tuples(st.integers()), VALUES, max_size=3),
)


def alike(sent: Any, found: Any) -> bool:  # noqa: ANN401 - any values
    """Compares exactly, including types; only a tuple may become a list."""
    if isinstance(sent, list | tuple) and type(found) in {list, type(sent)}:
        return len(sent) == len(found) and all(map(alike, sent, found))
    if isinstance(sent, dict) and isinstance(found, dict):
        return list(sent) == list(found) and all(alike(sent[key], found[key]) for key in sent)
    if isinstance(sent, float) and isinstance(found, float):
        return sent.hex() == found.hex()
    return type(sent) is type(found) and bool(sent == found)


def task_with(kind: Any) -> Task[..., None, Any]:  # noqa: ANN401 - a type
    def take(value: Any) -> None:  # noqa: ANN401
        """Takes it."""

    take.__annotations__["value"] = kind
    return Jobs("q").task(take)


def send_and_read(task: Task[..., None, Any], value: Any) -> Any:  # noqa: ANN401 - any values
    """Returns the argument as a worker gets it."""
    return task.bound(msgspec.json.decode(task.call(value).body, type=Invocation)).arguments["value"]


@given(value=ANY)
def test_of_tasks_without_types(value: Any) -> None:  # noqa: ANN401 - any value
    """An argument of a parameter without a type arrives as it was sent, or is refused."""
    with suppress(InvalidArgument):
        assert alike(value, send_and_read(task_with(Any), value))


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (Size, {"width": 1, "height": 2.5}, Size(1, 2.5)),
        (datetime, "2026-11-28T10:00:00", datetime(2026, 11, 28, 10)),  # noqa: DTZ001 - without a zone
        (set[int], [1, 2], {1, 2}),
        (Sequence[int], (1, 2), [1, 2]),
        (Decimal, 1.1, Decimal("1.1")),
        (Color, "red", Color.RED),
        (Options, {"at": datetime(2026, 11, 28), "size": (1, 2)}, {"at": datetime(2026, 11, 28), "size": [1, 2]}),  # noqa: DTZ001
    ],
    ids=str,
)
def test_plain_values_for_types(kind: Any, value: Any, found: Any) -> None:  # noqa: ANN401 - any
    """A plain JSON value arrives as the parameter's type converts it."""
    assert send_and_read(task_with(kind), value) == found


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *((Size, Size(math.nan, 1.0)), (float, math.inf), (dict[str, int], {1: 1}), (set[int], {1.5})),
        *((Any, value) for value in (math.nan, [math.inf], {1: 2}, {"a": b"x"}, {3}, Color.RED, Decimal("1.0"))),
    ],
    ids=str,
)
def test_values_that_their_type_cannot_carry(kind: Any, value: Any) -> None:  # noqa: ANN401 - any
    """A value that its declared type cannot carry is refused; the error names task, parameter and value."""
    with pytest.raises(InvalidArgument) as error:
        task_with(kind).call(value)
    said = str(error.value)
    assert ("task take" in said, "argument value" in said, kind is not Any or repr(value) in said) == (True,) * 3


@given(value=ANY)
def test_of_messages_schedules_and_states(value: Any) -> None:  # noqa: ANN401 - any value
    """A JSON value is read as it was sent, or refused: as a message, in a schedule, and as the state of a job."""
    states: list[bytes] = []
    token = state_setter.set(states.append)
    try:
        body = send_calls.batch_item(Outgoing(json=value))
        scheduled = service_calls.put_schedule("s", {"queue": "q"}, Outgoing(json=value))
        [job] = claim_calls.set_states("q", {"1": value})
        if len(msgspec.json.encode(value)) < 4000:
            set_state(value)
    except Refused:
        for refused in (lambda: set_state(value), lambda: [*claim_calls.set_states("q", {"1": value})]):
            with pytest.raises((Refused, InvalidArgument)):
                refused()
        return
    finally:
        state_setter.reset(token)
    assert alike(value, msgspec.json.decode(body)["body"])
    assert scheduled.content is not None
    assert job.content is not None
    assert alike(value, msgspec.json.decode(scheduled.content)["message"]["body"])
    assert alike(value, msgspec.json.decode(job.content)["states"]["1"])
    assert all(alike(value, msgspec.json.decode(state)) for state in states)


@given(headers=st.dictionaries(TEXTS, st.one_of(TEXTS, VALUES), max_size=2))
def test_of_headers(headers: dict[str, Any]) -> None:
    """Headers are texts: they are sent as they are, or refused."""
    try:
        item = send_calls.batch_item(Outgoing("x", headers=headers))
    except Refused:
        return
    assert alike(headers, msgspec.json.decode(item)["headers"] or {})
