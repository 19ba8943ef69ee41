"""Values and answers that many operations share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from queuey.messages import MAX_TTL, MAX_WAIT
from queuey.partitions import MAX_PARTITIONS
from queuey.titles import instant, titled

Id = Annotated[
    str,
    Meta(pattern="^[0-9a-f]{32}$", max_length=32, description="32 lower-case hex digits of a version 1 UUID"),
]
Timestamp = Annotated[
    str,
    Meta(pattern=r"^-?[0-9]{1,12}\.[0-9]{7}$(?!\n)", description="Seconds since 1970, with seven decimals"),
]
Count = Annotated[int, Meta(ge=0)]
Partition = Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
Seconds = Annotated[float, Meta(description="Seconds since 1970"), titled(unit=instant)]
Ttl = Annotated[int, Meta(ge=1, le=MAX_TTL, description="Seconds")]
Delay = Annotated[float, Meta(ge=0, le=MAX_TTL, description="Seconds")]
Outcome = Literal["none", "unknown"]


def levels(value: object) -> int:
    """Returns the depth of a JSON value: objects and lists within each other."""
    depth, nested = 0, [value]
    while nested := [each for each in nested if isinstance(each, dict | list)]:
        nested = [inner for each in nested for inner in (each.values() if isinstance(each, dict) else each)]
        depth += 1
    return depth


def bounded(limit: str, description: str = "", **bounds: Any) -> Meta:  # noqa: ANN401 - of msgspec.Meta
    """Describes a value whose upper bound is in :class:`queuey.service.Limits`."""
    return Meta(extra_json_schema={"x-limit": limit}, description=description or None, **bounds)


def line(longest: int, description: str = "") -> Meta:
    """Describes text without line breaks and control characters."""
    return Meta(max_length=longest, extra={"line": True}, description=description or None)


def words(*choices: str, description: str = "") -> Meta:
    """Describes text that is one of a few words; answers of later versions may have others."""
    return Meta(extra_json_schema={"enum": list(choices)}, description=description or None)


Wait = Annotated[float, bounded("max_wait", "Seconds to wait for messages if there are none", ge=0, le=MAX_WAIT)]
# Not Meta(pattern=…): msgspec 0.22 frees a pattern wrongly in a union with a list, and crashes as the interpreter ends.
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
"""False: ``false``, ``0`` and nothing; true: everything else."""


class Done(Struct, frozen=True, tag_field="status", tag="ok"):
    """Success, without further fields."""
