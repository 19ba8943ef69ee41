"""Titles and units of fields: what people read of a struct, and how. They stand with the type, in its annotations.

A field's title is its name in JSON with spaces, and its value is shown as it is, unless the annotation says otherwise:
``began: Annotated[float, titled(unit=instant)]``. Neither changes how the struct is encoded or described in a schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from queuey import ids, time_parsing

Unit = Callable[[Any, Any], object]
"""Makes of a field's value, which is not None, what people read; the second argument is the struct."""
Computed = tuple[str, Callable[[Any], object]]
"""A title, and a function of the struct."""
Column = str | Computed
"""The name of a field, or a computed column."""


def titled(title: str = "", unit: Unit | None = None) -> msgspec.Meta:
    """Describes a field for people; without a title it has that of its name."""
    return msgspec.Meta(extra={"title": title, "unit": unit})


def instant(seconds: float, _: object) -> str:
    """Shows seconds since 1970 as a time."""
    return time_parsing.iso(seconds)


def duration(seconds: float, _: object) -> str:
    """Shows seconds as a length of time."""
    return time_parsing.length(seconds)


def id_time(identifier: str, _: object = None) -> str:
    """Shows the time of an id."""
    return time_parsing.iso(ids.ticks_to_seconds(ids.parse_position(identifier)[0]))


def age(seconds: float, _: object) -> str:
    """Shows seconds since 1970 as the time that has passed since."""
    return time_parsing.length(round(max(0.0, time.time() - seconds)))


def age_of_lag(seconds: float, owner: Any) -> str:  # noqa: ANN401 - any struct with a lag
    """Shows the age of the oldest message behind, if there is one."""
    return time_parsing.length(seconds) if owner.lag else ""


def formatted(form: str) -> Unit:
    """Returns a unit of numbers: ``,`` for commas between thousands, ``.2f`` for two decimals."""
    return lambda number, _: format(number, form)


def estimated(flag: str = "exact", form: str = "") -> Unit:
    """Returns a unit of counts: "about" stands before one if the field ``flag`` of its struct is false."""
    return lambda count, owner: f"{'' if getattr(owner, flag) else 'about '}{count:{form}}"


def limit(count: int, _: object) -> object:
    """Shows a maximum, or that 0 does not limit anything."""
    return count or "no limit"


def columns(kind: type, chosen: Sequence[Column]) -> list[Computed]:
    """Returns titles, and functions that find what is shown of a struct.

    Args:
        kind: The type of the struct.
        chosen: The columns; none: all fields.
    """
    fields = _fields(kind)
    return [fields[column] if isinstance(column, str) else column for column in chosen or fields]


def within(name: str, kind: type, *chosen: str) -> list[Computed]:
    """Returns columns of a struct that is the value of a field; blank where that is None.

    Args:
        name: The name of the field.
        kind: The type of the inner struct.
        chosen: Its fields.
    """

    def of_inner(value: Callable[[Any], object], owner: object) -> object:
        inner = getattr(owner, name)
        return None if inner is None else value(inner)

    return [(title, partial(of_inner, value)) for title, value in columns(kind, chosen)]


@cache
def _fields(kind: type) -> dict[str, Computed]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: _described(field.name, field.encode_name, hints[field.name])
        for field in msgspec.structs.fields(kind)
    }


def _described(name: str, encoded: str, hint: object) -> Computed:
    title, unit = encoded.replace("_", " "), None
    for meta in _metas(hint):
        extra = meta.extra or {}
        title, unit = extra.get("title") or meta.title or title, extra.get("unit") or unit

    def value(owner: object) -> object:
        bare = getattr(owner, name)
        return bare if bare is None or unit is None else unit(bare, owner)

    return title, value


def _metas(hint: object) -> Iterator[msgspec.Meta]:
    """Yields the descriptions of a type and of the types that it is a union of, outer ones last."""
    if get_origin(hint) is Annotated:
        yield from _metas(get_args(hint)[0])
        yield from (meta for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta))
    else:
        for option in get_args(hint) if get_origin(hint) not in {list, tuple, dict} else ():
            yield from _metas(option)
