"""The kinds of simulated histories, and every mutation: the mechanism, its patches, and the history that shows it.

A stale seed fails. Find another one with ``SIM_SEARCH=1 pytest tests/sim/mutations -k 'part of the name'``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from queuey.claims.claims import ClaimUseCases
from queuey.claims.expiry_records import ExpiryRecords
from queuey.claims.log import expiry_turns, follow_ups, message_finder
from queuey.claims.log.expiry_turns import ExpiryRequest
from queuey.claims.log.follow_ups import MAX_LETTERS, FollowUps
from queuey.claims.log.forwarding import Forwarding
from queuey.claims.log.message_finder import (
    MAX_COVERS,
    MAX_PAGE_MESSAGES,
    MAX_SCAN_PAGES,
    Candidates,
    Duplicates,
    Finder,
    OrderedScanner,
)
from queuey.claims.log.partition_log import PartitionLog
from queuey.claims.rules import entry_draft
from queuey.claims.rules.entry_draft import EntryDraft
from queuey.claims.rules.expiry import find_expirable, ticks_until_due
from queuey.claims.rules.kinds.dedup import DedupRules
from queuey.claims.rules.kinds.limited import FreePlaces, LikelyPlaces, LimitedRules
from queuey.claims.rules.kinds.ordered import OrderCheck, OrderedRules
from queuey.claims.rules.partition_state import State
from queuey.claims.rules.waiting import Waiting
from queuey.runtime.limits import Limits
from queuey.storage.cassandra.write.name_steps import NameRow
from tests.harness.checking.claims import MAX_CLOCK_DIFFERENCE
from tests.sim import expiry as expiring
from tests.sim import storm
from tests.sim.explored import moves, names, post_keys
from tests.sim.mutations import claims, expiry
from tests.sim.playing import Mutation, Patch, Play, Real, answering, around
from tests.sim.web import Setup

Patches = Sequence[Patch]
LETTERS: Patches = [(follow_ups, MAX_LETTERS, 1)]
"""Dead letters are published one by one."""
LITTLE: Patches = [(message_finder, MAX_COVERS, 1), *LETTERS]
"""Besides, a state has one cover at most."""
SHORT_SCANS: Patches = [(message_finder, MAX_PAGE_MESSAGES, 2), (message_finder, MAX_SCAN_PAGES, 1)]


class Kind(NamedTuple):
    """A kind of histories: how one is run, how many are, and what holds in all of them."""

    play: Play
    histories: int
    patches: Patches = ()


def in_storm(histories: int, patches: Patches = (), setup: Setup | None = None, **fields: Any) -> Kind:  # noqa: ANN401
    setup = dataclasses.replace(setup or Setup(), **fields)
    return Kind(storm.play(setup), histories, patches)


ORDERED = Setup(kinds=("ordered",))
PLAIN = Setup(kinds=("plain",))
DEDUP = Setup(kinds=("dedup",))
FORGETFUL = Limits(claims_memory=1)
SETUPS = {
    "any": Setup(),
    "ordered": ORDERED,
    "cancelled": dataclasses.replace(PLAIN, cancelling=0.4, failing=0.3),
    "unbegun": dataclasses.replace(PLAIN, unbegun=0.7),
    "one of a key": dataclasses.replace(PLAIN, per_key=1),
    "two of a key": dataclasses.replace(PLAIN, per_key=2),
    "shares": dataclasses.replace(PLAIN, share=2),
    "forgetful": Setup(limits=FORGETFUL),
}
KINDS: dict[str, Kind] = {
    "any": in_storm(30, LITTLE),
    "ordered": in_storm(20, LITTLE, ORDERED),
    "failing": in_storm(10, LITTLE, failing=0.6),
    "ordered, failing": in_storm(6, LITTLE, ORDERED, failing=0.6),
    "forgetful": in_storm(6, LITTLE, limits=FORGETFUL),
    "ordered, forgetful": in_storm(6, LITTLE, ORDERED, limits=FORGETFUL),
    "cancelled": in_storm(12, (), SETUPS["cancelled"]),
    "cancelled, dedup": in_storm(8, (), DEDUP, cancelling=0.4),
    "cancelled, ordered": in_storm(8, (), ORDERED, cancelling=0.4, failing=0.3),
    "cancelled, limited": in_storm(8, (), PLAIN, per_key=1, share=2, cancelling=0.4),
    "unbegun": in_storm(12, (), SETUPS["unbegun"]),
    "unbegun, dedup": in_storm(6, (), DEDUP, unbegun=0.7),
    "unbegun, ordered": in_storm(6, (), ORDERED, unbegun=0.7),
    "unbegun, limited": in_storm(6, (), PLAIN, per_key=1, unbegun=0.7),
    "unbegun, cancelled": in_storm(6, (), PLAIN, cancelling=0.3, unbegun=0.7),
    "one of a key": in_storm(6, LETTERS, SETUPS["one of a key"]),
    "two of a key": in_storm(6, LETTERS, SETUPS["two of a key"]),
    "shares": in_storm(6, LETTERS, SETUPS["shares"]),
    "keys and shares": in_storm(6, LETTERS, PLAIN, per_key=1, share=2),
    "shares, dedup": in_storm(6, LETTERS, DEDUP, share=1),
    "shares, ordered": in_storm(6, LETTERS, ORDERED, share=2),
    "limits, failing": in_storm(6, LETTERS, PLAIN, per_key=2, share=2, failing=0.6),
    "limits, forgetful": in_storm(6, LETTERS, PLAIN, per_key=2, limits=FORGETFUL),
    "expiring": Kind(expiring.play("plain"), 5),
    "expiring, ordered": Kind(expiring.play("ordered"), 8),
    "expiring, dedup": Kind(expiring.play("dedup"), 8),
}
"""Each runs the first histories, and besides those that show a mutation of it."""


def broken(kind: str, rules: str, seed: int, *patches: Patch, **setup: Any) -> Mutation:  # noqa: ANN401
    """Returns a mutation of claims. ``rules``: of which one is broken then. ``setup``: fields instead of patches."""
    play = storm.play(dataclasses.replace(SETUPS[kind], **setup))
    return Mutation(play, tuple(rules.split()), [*KINDS[kind].patches, *patches], seed, kind)


def vanishing(rule: str, seed: int, *patches: Patch, kind: str = "plain") -> Mutation:
    return Mutation(expiring.play(kind), (rule,), patches, seed, "expiring" if kind == "plain" else "")


def explored(explore: Any, *patches: Patch, **options: Any) -> Mutation:  # noqa: ANN401
    """Returns a mutation of a small world, all histories of which are explored."""

    def play(_seed: int) -> list[str]:
        wrong: list[str] = explore(**options)[1]
        return wrong

    return Mutation(play, ("",), patches)


named = partial(explored, names.explore, faults=0, crashes=1)
moved = partial(explored, moves.explore, processes=2, crashes=1)
keyed = partial(explored, post_keys.explore, posts=2, faults=1, crashes=1)

APPEND: Real = PartitionLog._append
ANSWER_POLL = PartitionLog._answer_poll
MAY_REDELIVER = EntryDraft.may_redeliver
RENEW = State._renew
KNOWING_NO_KEYS = answering(State._record_keys)
NEVER_OVERDUE = FollowUps._is_overdue, claims.never_overdue
PASSING_WHAT_WAITS = OrderedScanner._make_chain, claims.passing_what_waits
CLAIMING_AT_THE_FRONT = OrderedScanner._find_start, claims.claiming_at_the_front

MUTATIONS: dict[str, Mutation] = {
    "the comparison of an append": broken("any", "G4 G5 G6", 3, replicas=claims.Unconditional),
    "the append before the answer": broken("any", "G4 G5", 3, around(APPEND, claims.answering_first)),
    "what is remembered above the horizon": broken(
        "any", "G4 G5", 3, (State.find_unknown, claims.find_all_above_cursor)
    ),
    "the margin at expiry": broken("any", "G4", 25, timing=claims.NoMargin(MAX_CLOCK_DIFFERENCE)),
    "the deadline of an answer": broken("any", "G4", 10, timing=claims.NoDeadline(MAX_CLOCK_DIFFERENCE)),
    "the deadline of another worker's answer": broken(
        "any", "G4", 1451, around(Forwarding._on_answer, claims.count_time_from_answer)
    ),
    "the deadline when a caller is told": broken("any", "G4", 10, answering(ClaimUseCases._is_late, answer=False)),
    "sending again what is in doubt": broken("any", "G5 G6", 13, store=claims.ReadOnce),
    "finality below the cursor": broken("any", "G5", 2, (State.is_done, claims.is_done_only_above_cursor)),
    "the horizon taken before the read": broken("any", "G6", 3332, store=claims.LateHorizon),
    "a horizon that is as far behind as writes may be late": broken("any", "G6", 14, store=claims.HorizonAtClock),
    "the due time of a delayed message": broken("any", "delay", 0, store=claims.ReadsAhead),
    "covers in the entry": broken("any", "dedup", 8, answering(DedupRules.find_needed, [])),
    "the margin of covers": broken("any", "G6", 841, around(Duplicates.choose_until, claims.choose_late_until)),
    "the end of covers whose message is gone": broken("any", "G6", 1004, answering(DedupRules.on_gone)),
    "covers in the store": broken("any", "dedup", 15, store=claims.NoCovers),
    "the end of all claims": broken("any", "G6", 29, answering(EntryDraft.release_all)),
    "dead letters of a process that died": broken("any", "G6", 49, NEVER_OVERDUE),
    "deletions of a process that died": broken("any", "on_ack", 133, NEVER_OVERDUE),
    "how old open work is, whenever a process has read of it": broken(
        "forgetful", "G6 on_ack", 246, (FollowUps.add_open, claims.forget_begin_of_open_work)
    ),
    "whose claims were lost to a dead letter": broken(
        "any", "G5", 100, (State._finish_leaving, claims.forgetting_who_had_it)
    ),
    "the append before the dead letter": broken("any", "G5", 110, around(APPEND, claims.publishing_first)),
    "the id of a dead letter": broken("any", "outbox", 237, store=claims.Renumbering),
    "another round for those who got nothing": broken("any", "empty", 6, answering(Candidates.has_any, answer=False)),
    "the read of the log before an empty answer": broken(
        "any", "empty", 4, answering(PartitionLog._catch_up_for, answer=False)
    ),
    "the error for who has waited for too long": broken(
        "any", "empty", 6095, around(ANSWER_POLL, claims.answer_old_poll_empty)
    ),
    "another round for those whose claims have ended before their answer": broken(
        "any", "empty", 1018, around(ANSWER_POLL, claims.answer_poll_in_doubt_empty)
    ),
    "the end of a scan that was cut short": broken(
        "any", "empty", 132, *SHORT_SCANS, around(PartitionLog._must_search_again, claims.cut_unseen)
    ),
    "deliveries counted when the entry is decided": broken(
        "any", "limit", 69, around(MAY_REDELIVER, claims.count_deliveries_at_read)
    ),
    "the append before the deletion": broken("any", "G6", 6, around(APPEND, claims.deleting_first)),
    # Ordered queues
    "the keys of what is outstanding": broken("ordered", "key", 1, KNOWING_NO_KEYS),
    "a key that is claimed is given to nobody else": broken(
        "ordered", "key", 159, around(OrderCheck.find_busy, claims.find_busy_but_claimed)
    ),
    "the key of a claim that is renewed late": broken(
        "ordered", "key", 3221, answering(OrderedRules.may_delay, answer=True)
    ),
    "the order, checked when the entry is decided": broken(
        "ordered", "order key", 3, answering(OrderCheck.try_deliver, answer=True)
    ),
    "ordered queues are read below the horizon": broken("ordered", "order", 37, *claims.BEYOND_THE_HORIZON),
    "the cursor stays below what waits": broken("ordered", "G6", 0, PASSING_WHAT_WAITS),
    "the front is what this process has read": broken("ordered", "G6", 17, CLAIMING_AT_THE_FRONT),
    # Cancelled messages
    "the log marks cancelled messages": broken(
        "cancelled", "cancelled", 9, around(State.apply, claims.apply_without_marks)
    ),
    "an attempt at a cancelled message that fails ends it": broken(
        "cancelled", "cancelled", 24, answering(EntryDraft._end_cancelled, answer=False)
    ),
    "a message that was read before its mark is not given again": broken(
        "cancelled", "cancelled", 1438, around(MAY_REDELIVER, claims.may_redeliver_despite_mark)
    ),
    "a snapshot marks cancelled messages": broken(
        "cancelled", "cancelled", 986, around(State.encode, claims.encode_without_cancelled)
    ),
    # Attempts
    "what did not begin does not count": broken("unbegun", "limit", 2, around(State.apply, claims.applying_as_begun)),
    "a claim that is renewed counts again": broken(
        "unbegun", "limit", 444, around(RENEW, claims.renewing_nothing_begun)
    ),
    "attempts are counted when the entry is decided": broken(
        "unbegun", "limit", 1768, around(EntryDraft.make_dead_letters, claims.burying_what_was_read)
    ),
    "a claim that ends in silence raises a suspicion": broken(
        "unbegun", "limit", 0, answering(State.is_suspected, answer=False)
    ),
    "a suspicion lasts": broken("unbegun", "limit", 33, around(State.is_suspected, claims.suspecting_once)),
    "a snapshot has attempts and suspicions": broken(
        "unbegun", "limit", 185, around(State.encode, claims.encode_without_marks)
    ),
    # Limits of claims
    "places are counted when the entry is decided": broken(
        "two of a key", "places", 179, (FreePlaces.try_take, claims.giving_all_that_was_read)
    ),
    "a claim that begins again needs a place": broken(
        "one of a key", "places", 120, answering(LimitedRules.may_renew, answer=True)
    ),
    "a partition has a share of the places": broken(
        "shares", "places", 8, answering(LimitedRules._count_free_in_partition, 1000)
    ),
    "the keys of claimed messages are recorded, to count them": broken("two of a key", "places", 0, KNOWING_NO_KEYS),
    "a snapshot has the keys of claimed messages": broken(
        "two of a key", "places", 65, around(State.encode, claims.encode_without_busy)
    ),
    "a renewal ends a rest": broken("one of a key", "places", 173, around(RENEW, claims.resting_for_good)),
    "a message that waits for its delay takes no place": broken(
        "one of a key", "empty", 289, (State.is_live, claims.never_resting)
    ),
    "free places of a busy key are found": broken(
        "two of a key", "empty", 0, (LikelyPlaces.estimate_for_key, claims.find_no_place_of_busy_key)
    ),
    "queues with limits by key are read below the horizon": broken("two of a key", "G6", 5, *claims.BEYOND_THE_HORIZON),
    "the cursor stays below messages without a place": broken("two of a key", "G6", 0, PASSING_WHAT_WAITS),
    "the front is what this process has read, where keys are limited": broken(
        "two of a key", "G6", 65, CLAIMING_AT_THE_FRONT
    ),
    # Expired messages that become dead letters
    "the record is there before the message": vanishing(
        "E1", 12, around(ExpiryRecords.ensure_expiry, expiry.ensure_expiry_once_stored)
    ),
    "the record is checked again once the message is stored": vanishing(
        "E1", 86, around(ExpiryRecords.ensure_expiry, expiry.ensure_expiry_before_store)
    ),
    "a record in force is not removed": vanishing("E1", 2, answering(ExpiryRecords._may_remove, answer=True)),
    "a record is removed at the version that was read": vanishing(
        "E1", 9, (expiring.KeptStore.remove_record, expiry.remove_at_any_version)
    ),
    "the next search comes in time for messages that no search has seen": vanishing(
        "E1", 122, around(ExpiryRecords._next_due_ticks, expiry.plan_search_by_seen_messages)
    ),
    "reads show messages that have ended": vanishing("E1", 0, (Finder._adapt_to_log, expiry.hide_expired_messages)),
    "reads from the cursor once they show messages that have ended": vanishing(
        "E1", 427, answering(Waiting.clear), kind="ordered"
    ),
    "a message expires S after its end": vanishing(
        "E3",
        0,
        (ticks_until_due, expiry.expire_by_one_clock),
        (expiry_turns, ticks_until_due, expiry.expire_by_one_clock),
    ),
    "live claims are left": vanishing("E3", 7, (entry_draft, find_expirable, expiry.find_expirable_with_claims)),
    "the next turn comes soon while dead letters are open": vanishing(
        "E1", 52, around(ExpiryRequest.result, expiry.make_turn_without_outbox)
    ),
    # Names
    "a row of a name changes only from the version that was seen": named(
        kinds=("PUT", "PUT"), mutation="version not compared", claims=False
    ),
    "the log records that a value was replaced": named(kinds=("PUT",), mutation="not in the log"),
    "a replaced value is removed": named(kinds=("PUT",), mutation="not removed"),
    "a name is not free before its message is done": named(kinds=("POST",), mutation="free too early"),
    "what was read before its replacement is not given": named(kinds=("PUT",), mutation="read before, given after"),
    "a replacement is settled after its removal": named(kinds=("PUT",), mutation="settled at once"),
    "a reader by time asks for the value": named(kinds=("PUT", "read"), mutation="shown unasked", claims=False),
    "rows of names are not final": explored(
        names.explore, (NameRow, NameRow.final, True), kinds=("PUT", "POST"), faults=1, crashes=0, claims=False
    ),
    # Moves
    "a move posts a chunk under a key": moved(event=None, mutation="no key"),
    "a move deletes what it has posted": moved(event=None, mutation="deleted first"),
    "a move takes messages by an entry": moved(event=None, mutation="taken unasked"),
    "a move has one chunk at a time": moved(event=None, mutation="two chunks"),
    "the end of a move is recorded": moved(event="release", mutation="no end"),
    "a move gives back what it took": moved(event="purge", mutation="not returned"),
    "a move ends the copies of what it takes": explored(
        moves.explore, processes=1, crashes=0, event=None, kind="dedup", mutation="no covers"
    ),
    # Posts with keys
    "a key is pending before anything is written": keyed(mutation="no pending row"),
    "a post is removed only if nobody has confirmed it": keyed(mutation="removed unasked"),
    "a post is confirmed by its own process": keyed(mutation="confirmed by others"),
    "a post that failed is removed": keyed(mutation="not removed"),
    "a late write is not in time": keyed(mutation="late is in time"),
}
"""By mechanism."""


def list_seeds(kind: str) -> list[int]:
    """Returns the seeds of a kind's histories: the first ones, and those that show a mutation."""
    return sorted({*range(KINDS[kind].histories), *(one.seed for one in MUTATIONS.values() if one.name == kind)})
