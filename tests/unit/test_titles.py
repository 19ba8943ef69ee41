"""Titles and units of a struct's fields, which people see."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated

import msgspec

from queuey.api.progress import Move
from queuey.titles import (
    age_of_lag,
    duration,
    format_as,
    format_estimate,
    id_time,
    instant,
    limit,
    make_columns,
    make_inner_columns,
    titled,
)


class Inner(msgspec.Struct):
    count: Annotated[int, titled("messages", format_estimate("exact", ","))]
    exact: bool = True


class Outer(msgspec.Struct, kw_only=True):
    """A struct with a field of each kind."""

    name: str = msgspec.field(name="queue_name")
    began: Annotated[float | None, titled(unit=instant)] = None
    ttl: Annotated[int, titled("time to live", duration)] | None = None
    inner: Inner | None = None


def shown(thing: object, *chosen: str) -> dict[str, object]:
    return {title: value(thing) for title, value in make_columns(type(thing), chosen)}


def test_fields_have_titles_and_units() -> None:
    """A field without a title has its JSON name; None is shown as it is, whatever the unit; all fields are shown."""
    full = Outer(name="q", began=0.0, ttl=7200)
    assert shown(full, "name", "began") == {"queue name": "q", "began": "1970-01-01T00:00:00.000Z"}
    assert shown(full, "ttl") == {"time to live": "2 h"}
    assert shown(Outer(name="q")) == {"queue name": "q", "began": None, "time to live": None, "inner": None}


def test_fields_of_an_inner_struct() -> None:
    """Fields of an inner struct are columns; if the inner struct is missing, their values are missing."""
    [(title, value)] = make_inner_columns("inner", Inner, "count")
    assert (title, value(Outer(name="q", inner=Inner(1200)))) == ("messages", "1,200")
    assert value(Outer(name="q", inner=Inner(1200, exact=False))) == "about 1,200"
    assert value(Outer(name="q")) is None


def test_a_column_of_several_fields() -> None:
    """A column of several fields is a title with a function of the struct, anywhere among the names of fields."""
    both = ("both", lambda thing: f"{thing.name} {thing.ttl}")
    chosen = make_columns(Outer, (both, "name"))
    assert [(title, value(Outer(name="q", ttl=5))) for title, value in chosen] == [("both", "q 5"), ("queue name", "q")]


def test_units() -> None:
    """Each unit shows a value as people read it."""
    assert limit(0, None) == "no limit"
    assert limit(3, None) == 3
    assert format_as(".2f")(0.5, None) == "0.50"
    assert id_time("39d94ce9e4a711f1ae954333c99db4f5").startswith("20")
    assert [age_of_lag(90.0, SimpleNamespace(lag=lag)) for lag in (0, 3)] == ["", "90 s"]


def test_schemas_know_nothing_of_them() -> None:
    """The API's schema of a type has no titles and units."""
    assert "of about" in {title for title, _ in make_columns(Move, ("total",))}
    assert "of about" not in str(msgspec.json.schema(Move))
