"""Parameters of queries, read as the original read them."""

from __future__ import annotations

import re

from queuey.facades.emodb.errors import BadArgument, BadParameter
from queuey.web.validators import show

MAX_CLAIM = 3600
"""Max time of a claim, in seconds."""
MOST_POLLED = 1000
DEFAULT_CLAIM = 30
DEFAULT_LIMIT = 10
_NUMBER = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


def read_ttl(query: dict[str, str]) -> int:
    """Returns for how many seconds to claim.

    Raises:
        BadParameter: It is no number.
        BadArgument: It is out of bounds.
    """
    ttl = _integer(query, "ttl", DEFAULT_CLAIM)
    if ttl < 0:
        raise BadArgument("ClaimTtl must be >=0")
    if ttl > MAX_CLAIM:
        raise BadArgument("ClaimTtl must be <=1 hour")
    return ttl


def read_limit(query: dict[str, str]) -> int:
    """Returns how many messages to give at most. Raises as :func:`read_ttl`."""
    limit = _integer(query, "limit", DEFAULT_LIMIT)
    if limit > MOST_POLLED:
        raise BadArgument(f"Limit must be <={MOST_POLLED}")
    return _positive(limit)


def read_count_limit(query: dict[str, str], most: int) -> int:
    """Returns how many messages to count exactly, at most ``most``. Raises as :func:`read_ttl`."""
    return min(most, _positive(_integer(query, "limit", most)))


def check_partitioned(query: dict[str, str]) -> None:
    """Reads ``partitioned``, which means nothing here: any process can do what is asked.

    Raises:
        BadParameter: It is neither true nor false.
    """
    value = query.get("partitioned", "false")
    if value.lower() not in {"true", "false"}:
        raise BadParameter(f'"{show(value)}" must be "true" or "false".')


def _integer(query: dict[str, str], name: str, otherwise: int) -> int:
    value = query.get(name)
    if value is None:
        return otherwise
    if _NUMBER.fullmatch(value) is None:
        raise BadParameter(f'"{show(value)}" is not a number.')
    return int(value)


def _positive(limit: int) -> int:
    if limit < 1:
        raise BadArgument("Limit must be >0")
    return limit
