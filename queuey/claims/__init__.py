"""Claims: the log of a queue partition, the state that follows from it, and what is decided on it. No input or output.

A claim gives a message to one caller for a while. Everything that changes is an :class:`Entry` of the partition's log;
a :class:`State` is what all entries up to one say; a :class:`Draft` decides what the next entry is to be.
``docs/architecture-claims.md`` has the whole picture.
"""

from queuey.claims.drafts import Draft, Poll, Settlement, Status
from queuey.claims.entries import FORMAT, Entry, UnknownFormat, decode_entry, encode_entry
from queuey.claims.receipts import Receipt, parse_receipt
from queuey.claims.state import MOST_ABOVE, MOST_OUTSTANDING, Delivery, State
from queuey.claims.timing import Timing

__all__ = [
    "FORMAT",
    "MOST_ABOVE",
    "MOST_OUTSTANDING",
    "Delivery",
    "Draft",
    "Entry",
    "Poll",
    "Receipt",
    "Settlement",
    "State",
    "Status",
    "Timing",
    "UnknownFormat",
    "decode_entry",
    "encode_entry",
    "parse_receipt",
]
