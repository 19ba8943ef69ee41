"""Types of the options of queues: what is told of one wherever it is read or shown."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from queuey.partitions import MAX_PARTITIONS
from queuey.titles import Unit, duration, limit

MAX_DELIVERIES = 1000
"""Max deliveries that a queue may limit claims to."""
MAX_CLAIMED = 1_000_000
MAX_CLAIMED_PER_KEY = 1000
MAX_READ_DELAY = 3600
"""Max read delay of a queue, in seconds."""
MAX_RESULT_TTL = 7 * 86_400
"""Max seconds for which results are kept; the ledger of each store keeps rows for longer."""


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
    """Describes an option of queues wherever it is read or shown.

    Args:
        label: In tables and forms.
        about: Help on the command line and in the API's document.
        seconds: A length of time; on the command line such as ``12h``.
        line: Text without line breaks and control characters.
        words: The only values of a text.
        resets: An update may set it back to the default.
        changes: An update may change it.
        unit: How people read it, if it is not a length of time.
        bounds: Of :class:`msgspec.Meta`.
    """
    extra = {"seconds": seconds, "line": line, "resets": resets and changes, "changes": changes}
    shown = {"unit": duration if seconds else unit}
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
        "Deliveries by claims before a dead letter; 0: no limit.",
        ge=0,
        le=MAX_DELIVERIES,
        unit=limit,
    ),
]
BACKOFF = option("backoff", "Delay after a delivery that has failed, such as first=5,most=600.")
DeadLetterOption = Annotated[
    str,
    option(
        "dead letters to",
        "Queue of dead letters, else the queue's name and .dead.",
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
        "drop messages whose TTL ends; or dead-letter: those without a TTL of their own become dead letters. "
        "It needs on_ack=delete.",
        words=ON_EXPIRY,
    ),
]
KindOption = Annotated[
    str,
    option(
        "kind",
        "plain; dedup: of messages with equal bodies that wait one is delivered; "
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
        "Seconds for which results of jobs are kept; 0: none is.",
        ge=0,
        le=MAX_RESULT_TTL,
        seconds=True,
    ),
]
ClaimedOption = Annotated[
    int,
    option(
        "claimed at most",
        "Max live claims, divided among the partitions, so at least as many as they are; 0: no limit.",
        ge=0,
        le=MAX_CLAIMED,
        unit=limit,
    ),
]
ClaimedPerKeyOption = Annotated[
    int,
    option(
        "claimed of one key",
        "Max live claims of one message key, in a plain queue, from its creation on; 0: no limit.",
        ge=0,
        le=MAX_CLAIMED_PER_KEY,
        unit=limit,
        resets=False,
    ),
]
