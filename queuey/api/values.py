"""Types of values that many operations share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from queuey.model.messages import MAX_TTL, MAX_WAIT
from queuey.model.partitions import MAX_PARTITIONS
from queuey.model.titles import instant, titled

Id = Annotated[
    str, Meta(pattern="^[0-9a-f]{32}$", max_length=32, description="32 lower-case hex digits of a version 1 UUID")
]
Timestamp = Annotated[
    str, Meta(pattern=r"^-?[0-9]{1,12}\.[0-9]{7}$(?!\n)", description="Seconds since 1970, with seven decimals")
]
Count = Annotated[int, Meta(ge=0)]
Partition = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
Seconds = Annotated[float, Meta(description="Seconds since 1970"), titled(unit=instant)]
Ttl = Annotated[int, Meta(ge=1, le=MAX_TTL, description="Seconds")]
Delay = Annotated[float, Meta(ge=0, le=MAX_TTL, description="Seconds")]
Outcome = Literal["none", "unknown"]


def nesting_depth(value: object) -> int:
    depth, nested = 0, [value]
    while nested := [v for v in nested if isinstance(v, dict | list)]:
        nested = [inner for v in nested for inner in (v.values() if isinstance(v, dict) else v)]
        depth += 1
    return depth


def bounded(limit: str, description: str = "", **bounds: Any) -> Meta:  # noqa: ANN401 - arguments of msgspec.Meta
    """Describes a value with an upper bound in :class:`queuey.app.service.Limits`; ``limit`` is its name there."""
    return Meta(extra_json_schema={"x-limit": limit}, description=description or None, **bounds)


def one_line_text(max_length: int, description: str = "") -> Meta:
    """Describes a line that people read. See :func:`queuey.model.messages.is_readable`."""
    return Meta(max_length=max_length, extra={"line": True}, description=description or None)


def text_choice(*choices: str, description: str = "") -> Meta:
    """Describes text that is one of a few words. Answers of later versions may have other words."""
    return Meta(extra_json_schema={"enum": list(choices)}, description=description or None)


Wait = Annotated[float, bounded("max_wait", "Seconds to wait for messages if there are none", ge=0, le=MAX_WAIT)]
# Not Meta(pattern=…): in a union with a list, msgspec 0.22 frees the pattern wrongly and crashes at interpreter exit.
Partitions = (
    Annotated[
        str,
        Meta(
            description="Comma list of partitions, `*` for all",
            extra_json_schema={"pattern": r"^(\*|([0-9]+(,[0-9]+)*)?)$"},
        ),
    ]
    | list[Annotated[int, Meta(ge=0)]]
)
Flag = bool | int | str
"""``false``, ``0`` and empty text mean false; everything else means true."""


class Done(Struct, frozen=True, tag_field="status", tag="ok"):
    """Success without further fields."""
