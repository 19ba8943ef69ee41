"""Writes and changes the timing that a keyspace stores (:mod:`..cluster.timing`)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import CassandraOptions
from queuey.storage.cassandra.cluster.timing import (
    LEASE,
    MANY_CENTRES_TIMING,
    ONE_CENTRE_TIMING,
    KeyspaceTiming,
    StoredTiming,
    decode,
    encode,
    make_final,
    make_settled,
    make_step,
)
from queuey.storage.cassandra.statements.lightweight_transactions import LightweightTransactions
from queuey.storage.cassandra.time.timing_in_force import READ_TIMING, Measured

_SWAP_TIMING = Statement("UPDATE migrations SET timing = ? WHERE singleton = 0 IF timing = ?", idempotent=False)
_SELECT_TAILS = Statement("SELECT process, tails FROM heartbeats")

Tell = Callable[[str], None]


class TimingStatus(NamedTuple):
    """The timing of a keyspace, and the measurements of its processes.

    Attributes:
        centres: Number of data centres with copies; all of them if the copies disregard data centres.
    """

    stored: StoredTiming
    measured: Mapping[str, Measured]
    centres: int


def write_first_timing(driver: Driver, options: CassandraOptions, tell: Tell) -> KeyspaceTiming | None:
    """Writes the timing of a new keyspace and returns it; None if the keyspace has one.

    Its values depend on whether there are several data centres.
    """
    [(present,)] = driver.run(READ_TIMING, consistency=options.catalogue_read) or [(None,)]
    if present is not None:
        return None
    timing = ONE_CENTRE_TIMING if _count_centres(driver) == 1 else MANY_CENTRES_TIMING
    if not _compare_and_swap(driver, options, make_settled(timing, secrets.token_hex(8)), None):
        return None
    tell(f"times: {describe_timing(timing)}")
    return timing


def read_timing_status(driver: Driver, options: CassandraOptions) -> TimingStatus:
    [(text,)] = driver.run(READ_TIMING, consistency=options.catalogue_read) or [(None,)]
    if text is None:
        raise SettingsError("The keyspace has no timing; run `queuey migrate`.")
    rows = driver.run(_SELECT_TAILS, consistency=options.catalogue_read)
    measured = {process: msgspec.json.decode(tails, type=Measured) for process, tails in rows if tails}
    return TimingStatus(decode(text), measured, _count_centres(driver))


def change_timing(
    driver: Driver,
    options: CassandraOptions,
    wanted: KeyspaceTiming,
    tell: Tell,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Changes the timing of all processes, in two steps, and waits between them. If stopped, the same call continues.

    Raises SettingsError if it breaks the guarantees, and StoreUnavailable if another command changes it meanwhile.
    """
    stored = read_timing_status(driver, options).stored
    if stored.settled and stored.kept == wanted:
        tell("nothing to change")
        return
    wanted.check()
    step = make_step(stored, wanted, secrets.token_hex(8), time.time())
    if not _compare_and_swap(driver, options, step, stored):
        raise StoreUnavailable("another command has just changed the timing of this keyspace")
    seconds = LEASE + max(level.delay for level in step.assumed.levels.values()) + step.assumed.clock_difference + 1.0
    tell(f"stored the stricter limits; waiting {seconds:g} s until every process keeps them and older work has ended")
    wait(seconds)
    if not _compare_and_swap(driver, options, make_final(step, wanted, secrets.token_hex(8), time.time()), step):
        raise StoreUnavailable("another command has changed the timing of this keyspace meanwhile")
    tell(f"done: {describe_timing(wanted)}")


def describe_timing(timing: KeyspaceTiming) -> str:
    levels = [
        f"{name}: W {level.deadline:g} s, U {level.undo:g} s, D {level.delay:g} s"
        for name, level in timing.levels.items()
    ]
    return "; ".join([f"S {timing.clock_difference:g} s", f"C {timing.row_age:g} s", *levels])


def _count_centres(driver: Driver) -> int:
    copies = driver.replication()
    return len({host.dc for host in driver.hosts()}) if "" in copies else len(copies)


def _compare_and_swap(driver: Driver, options: CassandraOptions, new: StoredTiming, old: StoredTiming | None) -> bool:
    text, expected = encode(new), None if old is None else encode(old)
    return (
        LightweightTransactions(driver, options, driver.calls.deadline.clock)
        .wait(_SWAP_TIMING, (text, expected), text)
        .is_done
    )
