"""Titles, units and options of struct fields, for people. They are defined in the type's annotations.

By default a field's title is its JSON name with spaces, and its value is shown unchanged. An annotation may define
both: ``began: Annotated[float, titled(unit=instant)]``. It does not change the struct's encoding or schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from queuey.model import ids, time_parsing

Unit = Callable[[Any, Any], object]
"""Converts a field's value, which is not None, to what is shown. The second argument is the struct."""
Computed = tuple[str, Callable[[Any], object]]
"""A title, and a function of the struct that returns what is shown."""
Column = str | Computed
"""The name of a field, or a computed column."""


def titled(title: str = "", unit: Unit | None = None) -> msgspec.Meta:
    return msgspec.Meta(extra={"title": title, "unit": unit})


def option(
    *names: str,
    seconds: bool = False,
    instant: bool = False,
    argument: bool = False,
    panel: str | None = None,
    **bounds: Any,  # noqa: ANN401 - of msgspec.Meta
) -> msgspec.Meta:
    """Marks a field as an option of commands, for :mod:`queuey.terminal.struct_options`.

    Args:
        names: Names of the option, if they do not follow from the field's name.
        seconds: Whether the value is a length of time, such as ``12h``.
        instant: Whether the value is a time, such as ``-1h``.
        argument: Whether the field is an argument instead of an option.
        panel: Panel of the option in the help.
        bounds: Arguments of :class:`msgspec.Meta`.
    """
    extra = {"option": names, "seconds": seconds, "instant": instant, "argument": argument, "panel": panel}
    return msgspec.Meta(extra=extra, **bounds)


def instant(seconds: float, _: object) -> str:
    return time_parsing.format_instant(seconds)


def duration(seconds: float, _: object) -> str:
    return time_parsing.format_duration(seconds)


def id_time(identifier: str, _: object = None) -> str:
    return time_parsing.format_instant(ids.ticks_to_seconds(ids.parse_position(identifier)[0]))


def age(seconds: float, _: object) -> str:
    return time_parsing.format_duration(round(max(0.0, time.time() - seconds)))


def age_of_lag(seconds: float, owner: Any) -> str:  # noqa: ANN401 - any struct with a lag
    return time_parsing.format_duration(seconds) if owner.lag else ""


def format_as(form: str) -> Unit:
    return lambda number, _: format(number, form)


def format_estimate(flag: str = "exact", form: str = "") -> Unit:
    """Returns a unit that prefixes a count with "about" if the field ``flag`` of its struct is false."""
    return lambda count, owner: f"{'' if getattr(owner, flag) else 'about '}{count:{form}}"


def limit(count: int, _: object) -> object:
    return count or "no limit"


def make_columns(kind: type, chosen: Sequence[Column]) -> list[Computed]:
    """Returns the titles and functions of columns of a struct.

    Args:
        kind: Type of the struct.
        chosen: The columns; empty for all fields.
    """
    fields = _fields(kind)
    return [fields[column] if isinstance(column, str) else column for column in chosen or fields]


def make_inner_columns(name: str, kind: type, *chosen: str) -> list[Computed]:
    """Returns columns of a struct in a field of another struct. Their values are None if the field is None.

    Args:
        name: Name of the field.
        kind: Type of the inner struct.
        chosen: Fields of the inner struct; empty for all.
    """

    def of_inner(value: Callable[[Any], object], owner: object) -> object:
        inner = getattr(owner, name)
        return None if inner is None else value(inner)

    return [(title, partial(of_inner, value)) for title, value in make_columns(kind, chosen)]


@cache
def _fields(kind: type) -> dict[str, Computed]:
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.name: _describe(field.name, field.encode_name, hints[field.name])
        for field in msgspec.structs.fields(kind)
    }


def _describe(name: str, encoded: str, hint: object) -> Computed:
    title, unit = encoded.replace("_", " "), None
    for meta in _find_metas(hint):
        extra = meta.extra or {}
        title, unit = extra.get("title") or meta.title or title, extra.get("unit") or unit

    def value(owner: object) -> object:
        bare = getattr(owner, name)
        return bare if bare is None or unit is None else unit(bare, owner)

    return title, value


def _find_metas(hint: object) -> Iterator[msgspec.Meta]:
    """Yields the annotations of a type, and of the alternatives of a union; inner ones first."""
    if get_origin(hint) is Annotated:
        yield from _find_metas(get_args(hint)[0])
        yield from (meta for meta in get_args(hint)[1:] if isinstance(meta, msgspec.Meta))
    else:
        for option in get_args(hint) if get_origin(hint) not in {list, tuple, dict} else ():
            yield from _find_metas(option)
