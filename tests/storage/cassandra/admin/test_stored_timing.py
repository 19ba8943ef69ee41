"""Tests of the timing stored in a keyspace: who writes it, how it changes at run time, and who is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from queuey.model.errors import SettingsError, StoreUnavailable
from queuey.storage.cassandra.admin import doctor, timing_changes
from queuey.storage.cassandra.admin.migrations import migrate
from queuey.storage.cassandra.cluster import Driver, Statement
from queuey.storage.cassandra.cluster.options import parse_url
from queuey.storage.cassandra.cluster.timing import MANY_CENTRES_TIMING, ONE_CENTRE_TIMING, KeyspaceTiming
from queuey.storage.cassandra.time.clock_check import REFUSE_RATIO
from tests.servers import keyspaces
from tests.servers.plugin import Cassandra
from tests.servers.processes import run_to_end
from tests.servers.served import environment

OPTIONS = replace(keyspaces.OPTIONS, follow=True, reap_interval=None)


@pytest.fixture
def url(cassandra: Cassandra) -> str:
    return keyspaces.make(cassandra)


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    with closing(Driver(parse_url(url), OPTIONS)) as opened:
        assert opened.ready(60)
        yield opened


def run_queuey(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "queuey", *arguments], env=environment())


def silent(_line: str) -> None:
    pass


def test_a_new_keyspace_has_the_times_of_one_data_centre(driver: Driver, url: str) -> None:
    """A migration writes timing if the keyspace has none, also after a migration that stopped before it did."""
    assert timing_changes.read_timing_status(driver, OPTIONS).stored.kept == ONE_CENTRE_TIMING
    erase = Statement("UPDATE migrations SET timing = null WHERE singleton = 0 IF timing != null", idempotent=False)
    assert driver.run(erase, serial="SERIAL")[0][0]
    assert migrate(parse_url(url), OPTIONS).timing == ONE_CENTRE_TIMING
    assert timing_changes.read_timing_status(driver, OPTIONS).stored.assumed == ONE_CENTRE_TIMING
    assert migrate(parse_url(url), OPTIONS).timing is None
    [clocks] = [finding for finding in doctor.examine(parse_url(url), OPTIONS) if finding.check == "clocks"]
    assert f"the limit is {REFUSE_RATIO * ONE_CENTRE_TIMING.clock_difference:g} s" in clocks.text


def test_a_change_that_stopped_is_gone_on_with(driver: Driver, url: str) -> None:
    """The timing after the first step of a change is safe; the same or another command can continue from there."""
    keyspaces.set_timing(url, MANY_CENTRES_TIMING)

    def killed(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timing_changes.change_timing(driver, OPTIONS, ONE_CENTRE_TIMING, silent, killed)
    stored = timing_changes.read_timing_status(driver, OPTIONS).stored
    assert (stored.kept, stored.assumed) == (ONE_CENTRE_TIMING, MANY_CENTRES_TIMING)
    [finding] = [one for one in doctor.examine(parse_url(url), OPTIONS) if one.check == "timing"]
    assert finding.state == "warn"
    timing_changes.change_timing(driver, OPTIONS, MANY_CENTRES_TIMING, silent, lambda _: None)
    assert timing_changes.read_timing_status(driver, OPTIONS).stored.assumed == MANY_CENTRES_TIMING


def test_two_changes_at_once(driver: Driver, url: str) -> None:
    """The first of two simultaneous changes detects the other and leaves what that has written."""

    def other(_seconds: float) -> None:
        timing_changes.change_timing(driver, OPTIONS, MANY_CENTRES_TIMING, silent, lambda _: None)

    with pytest.raises(StoreUnavailable, match="another command"):
        timing_changes.change_timing(driver, OPTIONS, replace_difference(ONE_CENTRE_TIMING, 0.1), silent, other)
    assert timing_changes.read_timing_status(driver, OPTIONS).stored.kept == MANY_CENTRES_TIMING
    with pytest.raises(SettingsError, match="shorter"):
        timing_changes.change_timing(driver, OPTIONS, replace_difference(ONE_CENTRE_TIMING, 0.5), silent, other)


def replace_difference(timing: KeyspaceTiming, difference: float) -> KeyspaceTiming:
    return KeyspaceTiming(difference, timing.row_age, timing.levels)


def test_the_command(url: str) -> None:
    """The command shows the stored timing, refuses inconsistent values, and says when nothing has to be changed."""
    shown = run_queuey("timing", "--store", url)
    assert (shown.returncode, "D 1 s" in shown.stdout) == (0, True), shown.stderr
    refused = run_queuey("timing", "--store", url, "--delay", "0.5")
    assert (refused.returncode, "shorter" in refused.stderr) == (2, True)
    too_long = run_queuey("timing", "--store", url, "--row-age", "0.8")
    assert (too_long.returncode, "0.8" in too_long.stderr) == (2, True)
    same = run_queuey("timing", "--store", url, "--soon", "--json")
    assert json.loads(same.stdout)["settled"] is True
    assert "nothing to change" in same.stderr


@pytest.mark.needs_programs
def test_the_command_needs_cassandra() -> None:
    """The command refuses a SQLite store, which has no such timing."""
    assert run_queuey("timing").returncode == 2
