"""Types of queue options, with the descriptions and bounds used wherever options are read or shown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from queuey.model import titles
from queuey.model.partitions import MAX_PARTITIONS
from queuey.model.titles import Unit, limit

MAX_DELIVERIES = 1000
MAX_CLAIMED = 1_000_000
MAX_CLAIMED_PER_KEY = 1000
MAX_READ_DELAY = 3600
"""Max read delay of a queue in seconds."""
MAX_RESULT_TTL = 7 * 86_400
"""Max seconds for which results are kept. The ledger of each store can keep rows for longer."""


def option(
    label: str,
    about: str,
    *,
    seconds: bool = False,
    line: bool = False,
    words: tuple[str, ...] = (),
    resets: bool = True,
    changes: bool = True,
    unit: Unit | None = None,
    **bounds: Any,  # noqa: ANN401 - of msgspec.Meta
) -> msgspec.Meta:
    """Describes a queue option.

    Args:
        label: Title in tables and forms.
        about: Help text on the command line and in the OpenAPI document.
        seconds: The option is a duration; the command line accepts values such as ``12h``.
        line: The option is text without line breaks and control characters.
        words: The allowed values of a text.
        resets: An update may reset the option to its default.
        changes: An update may change the option.
        unit: How the value is shown to people, unless the option is a duration.
        bounds: Further arguments of :class:`msgspec.Meta`.
    """
    extra = {"line": line, "resets": resets and changes, "changes": changes}
    extra |= titles.option(seconds=seconds).extra or {}
    shown = {"unit": titles.duration if seconds else unit}
    more = {"enum": list(words)} if words else None
    return msgspec.Meta(title=label, description=about, extra=extra | shown, extra_json_schema=more, **bounds)


TYPES = ("user", "public")
CONSISTENCIES = ("weak", "strong", "very_strong")
ON_ACK = ("keep", "delete")
ON_EXPIRY = ("drop", "dead-letter")
KINDS = ("plain", "dedup", "ordered")
CLAIMS = ("open", "paused")
CountOption = Annotated[
    int, option("partitions", "Partitions; they can only grow.", ge=1, le=MAX_PARTITIONS, resets=False)
]
TypeOption = Annotated[str, option("type", "user; or public: everybody may read.", words=TYPES, resets=False)]
ConsistencyOption = Annotated[
    str, option("consistency", "weak, strong or very_strong.", words=CONSISTENCIES, resets=False)
]
ReadDelayOption = Annotated[
    float,
    option("read delay", "Seconds that range reads stay behind the clock.", ge=0, le=MAX_READ_DELAY, seconds=True),
]
DeliveriesOption = Annotated[
    int,
    option(
        "max deliveries",
        "Max deliveries by claims, then the message becomes a dead letter; 0: no limit.",
        ge=0,
        le=MAX_DELIVERIES,
        unit=limit,
    ),
]
BACKOFF = option("backoff", "Delay after a failed delivery, such as first=5,most=600.")
DeadLetterOption = Annotated[
    str,
    option(
        "dead letters to",
        "Queue of dead letters; by default the queue's name and .dead.",
        unit=lambda name, queue: name or f"{queue.name}.dead",
    ),
]
OnAckOption = Annotated[
    str, option("on ack", "keep acknowledged messages for reads by time, or delete them.", words=ON_ACK)
]
OnExpiryOption = Annotated[
    str,
    option(
        "on expiry",
        "drop expired messages; or dead-letter: expired messages without a TTL of their own become dead letters. "
        "It needs on_ack=delete.",
        words=ON_EXPIRY,
    ),
]
KindOption = Annotated[
    str,
    option(
        "kind",
        "plain; dedup: only one of the waiting messages with equal bodies is delivered; "
        "or ordered: messages of one key are claimed one after another. It never changes.",
        words=KINDS,
        changes=False,
    ),
]
ClaimsOption = Annotated[
    str, option("claims", "open; or paused: no message is claimed until it is open again.", words=CLAIMS)
]
ResultTtlOption = Annotated[
    int,
    option(
        "result ttl",
        "Seconds for which results of jobs are kept; 0: results are not kept.",
        ge=0,
        le=MAX_RESULT_TTL,
        seconds=True,
    ),
]
ClaimedOption = Annotated[
    int,
    option(
        "claimed at most",
        "Max live claims, divided among the partitions, so at least the number of partitions; 0: no limit.",
        ge=0,
        le=MAX_CLAIMED,
        unit=limit,
    ),
]
ClaimedPerKeyOption = Annotated[
    int,
    option(
        "claimed of one key",
        "Max live claims of one message key, only in a plain queue and only set at its creation; 0: no limit.",
        ge=0,
        le=MAX_CLAIMED_PER_KEY,
        unit=limit,
        resets=False,
    ),
]
