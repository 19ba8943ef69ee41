"""Settings that were removed, and what took their place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from queuey.errors import SettingsError
from queuey.settings.table import Setting, as_text, table
from queuey.terminal.setting_values import Given


class Moved(NamedTuple):
    """The field of a table that took a setting's place."""

    table: str
    field: str


_LEVEL = ("write", "read", "delay", "deadline")
_TABLES = {"weak": _LEVEL, "strong": _LEVEL, "very_strong": _LEVEL, "catalogue": ("write", "read", "serial")}
FIXED = {
    "max_batch": 1000,
    "max_ids": 1000,
    "max_queue_name": 50,
    "max_message_key": 256,
    "max_principals": 100,
    "max_headers": 16,
    "max_header_bytes": 8192,
    "max_content_type": 200,
    "default_limit": 100,
    "max_limit": 1000,
    "max_queues_per_read": 100,
    "default_list": 1000,
    "max_list": 10_000,
    "cassandra_cached_queues": 100_000,
}
"""Settings that became constants, whose only value is this."""
REMOVED: Mapping[str, Moved | str] = {
    **{
        f"cassandra_{name}_{field}": Moved(f"consistency.{name}", field)
        for name, fields in _TABLES.items()
        for field in fields
    },
    **{name: f"{name} is always {value}: remove it." for name, value in FIXED.items()},
    "busy_timeout": "A process waits for another one's lock for a third of deadline: remove it, or set deadline.",
}
"""What took a setting's place, or what to do without it (a sentence)."""


def refuse_removed(given: Iterable[tuple[str, Given]]) -> None:
    """Refuses settings that were removed.

    Args:
        given: Names and what was given for them.

    Raises:
        SettingsError: Names each removed setting, its value, and what to give instead in the same place.
    """
    found = [(name, value) for name, value in given if name in REMOVED]
    if not found:
        return
    gone = (
        f"Setting {name} (from {value.source}) is {as_text(value.value)!r}, but was removed." for name, value in found
    )
    raise SettingsError(" ".join([*gone, *_next_steps(found)]))


def _next_steps(found: Iterable[tuple[str, Given]]) -> Iterator[str]:
    tables: dict[tuple[str, str], dict[str, object]] = {}
    for name, given in found:
        replacement = REMOVED[name]
        if isinstance(replacement, str):
            yield replacement
        else:
            tables.setdefault((replacement.table, given.form), {})[replacement.field] = given.value
    lines = {line.name: line for line in table()}
    for (name, form), fields in tables.items():
        yield f"Give instead: {_assignment(lines[name], form, fields)}."


def _assignment(line: Setting, form: str, fields: Mapping[str, object]) -> str:
    if form == "file":
        return f"[{line.name}] {', '.join(f'{name} = {json.dumps(value)}' for name, value in fields.items())}"
    text = as_text(fields)
    return {
        "variable": f"{line.variable}={text}",
        "option": f"{line.option} {text}",
        "Spark": f"option {line.name} with the text {text}",
    }[form]
