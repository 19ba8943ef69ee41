"""Error answers."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from queuey.api.claims import Settlement
from queuey.api.values import Id, Outcome


class ConflictingOffset(Struct, frozen=True):
    """The offset that is recorded now, and whether this request recorded it."""

    offset: Id | None
    applied: bool


class Details(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of a failed write, or of each of its items, partitions or receipts.

    Attributes:
        not_owned: Partitions that the member does not own under its epoch. Nothing was recorded for them.
    """

    outcome: Outcome | None = None
    outcomes: list[Outcome] | None = None
    partitions: dict[int, ConflictingOffset] | None = None
    results: list[Settlement] | None = None
    not_owned: list[int] | None = None


class ErrorBody(Details, frozen=True, kw_only=True, omit_defaults=True):
    """An error: its messages by field or name."""

    status: Literal["error"]
    error_msg: dict[str, str]


class Problem(Details, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457 problem details, for clients that accept application/problem+json."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: dict[str, str]
