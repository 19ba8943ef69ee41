"""The chart's schema of the service's settings, generated from their table."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any

import msgspec

from queuey.settings import Setting, table
from queuey.settings.setting_values import SecretName

PLAIN = {str: "string", Path: "string", int: "integer", float: "number", bool: "boolean"}
PATTERNS = {"store": "^(sqlite|cassandra://.+/.+)$"}


def properties() -> dict[str, Any]:
    """Returns the schema of each setting, by its name in a settings file; nested tables are below their table."""
    schemas: dict[str, Any] = {}
    for line in table():
        owner, _, name = line.name.rpartition(".")
        below = schemas
        if owner:
            below = schemas.setdefault(owner, {"type": "object", "additionalProperties": False, "properties": {}})[
                "properties"
            ]
        below[name] = _schema(line)
    return schemas


def _schema(line: Setting) -> dict[str, Any]:
    kind, meta = line.kind, line.meta
    if typing.get_origin(kind) is typing.Literal:
        choices = list(typing.get_args(kind))
        # YAML reads on and off as booleans.
        return {"enum": [*choices, True, False] if {"on", "off"} <= set(choices) else choices}
    if kind is SecretName:
        return {"type": "string", "pattern": "^(env|file):."}
    if kind not in PLAIN:
        return {"type": "object"}  # the service checks its content
    limits = {"minimum": meta.ge, "maximum": meta.le, "minLength": meta.min_length, "pattern": PATTERNS.get(line.name)}
    return {"type": PLAIN[kind], **{name: limit for name, limit in limits.items() if limit is not None}}


def as_text() -> str:
    return msgspec.json.format(msgspec.json.encode(properties()), indent=2).decode()
