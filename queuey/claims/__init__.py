"""Claims: the log of a queue partition, the state that follows from it, and what is decided on it. No input or output.

A claim gives a message to one caller for a while. Everything that changes is an :class:`Entry` of the partition's log;
a :class:`State` is what all entries up to one say; an :class:`EntryDraft` decides what the next entry is to be.
``docs/architecture-claims.md`` has the whole picture.
"""

from queuey.claims.covers import MOST_UNCONFIRMED, Copies, CoverDraft, digest_of, partition_of, place_in, sift
from queuey.claims.drafts import EntryDraft, Poll, ReceiptStatus, Settlement
from queuey.claims.entries import FORMAT, Entry, UnknownFormat, decode_entry, encode_entry
from queuey.claims.receipts import ClaimReceipt, parse_receipt
from queuey.claims.state import MOST_ABOVE, MOST_OUTSTANDING, MOST_SUPERSEDED, LastDelivery, State
from queuey.claims.timing import ClaimTiming

__all__ = [
    "FORMAT",
    "MOST_ABOVE",
    "MOST_OUTSTANDING",
    "MOST_SUPERSEDED",
    "MOST_UNCONFIRMED",
    "ClaimReceipt",
    "ClaimTiming",
    "Copies",
    "CoverDraft",
    "Entry",
    "EntryDraft",
    "LastDelivery",
    "Poll",
    "ReceiptStatus",
    "Settlement",
    "State",
    "UnknownFormat",
    "decode_entry",
    "digest_of",
    "encode_entry",
    "parse_receipt",
    "partition_of",
    "place_in",
    "sift",
]
