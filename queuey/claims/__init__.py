"""The log of claims of a queue partition, the state that follows from it, and the decisions on it. No input or output.

A claim gives a message to one caller for a while. Every change is an :class:`Entry` of the partition's log. A
:class:`State` follows from all entries up to one; an :class:`EntryDraft` builds the next entry. See
``docs/architecture-claims.md``.
"""

from queuey.claims.covers import (
    MOST_UNCONFIRMED,
    CoverDraft,
    ScanDuplicates,
    digest_of,
    partition_of,
    place_in,
    split_duplicates,
)
from queuey.claims.drafts import EntryDraft, Poll
from queuey.claims.entries import FORMAT, Entry, UnknownFormat, decode_entry, encode_entry
from queuey.claims.order import MOST_WAITING, Waiting, ended_in_order, free_in_order, freed_by, key_of
from queuey.claims.places import ClaimLimits, LikelyPlaces, limited_key_of, limits_of
from queuey.claims.receipts import ClaimReceipt, ReceiptStatus, Settlement, parse_receipt
from queuey.claims.state import MOST_ABOVE, MOST_OUTSTANDING, MOST_SUPERSEDED, LastDelivery, State
from queuey.claims.timing import ClaimTiming

__all__ = [
    "FORMAT",
    "MOST_ABOVE",
    "MOST_OUTSTANDING",
    "MOST_SUPERSEDED",
    "MOST_UNCONFIRMED",
    "MOST_WAITING",
    "ClaimLimits",
    "ClaimReceipt",
    "ClaimTiming",
    "CoverDraft",
    "Entry",
    "EntryDraft",
    "LastDelivery",
    "LikelyPlaces",
    "Poll",
    "ReceiptStatus",
    "ScanDuplicates",
    "Settlement",
    "State",
    "UnknownFormat",
    "Waiting",
    "decode_entry",
    "digest_of",
    "encode_entry",
    "ended_in_order",
    "free_in_order",
    "freed_by",
    "key_of",
    "limited_key_of",
    "limits_of",
    "parse_receipt",
    "partition_of",
    "place_in",
    "split_duplicates",
]
