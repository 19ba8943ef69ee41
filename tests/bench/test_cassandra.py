"""The measures on Cassandra: that the baselines do the work they stand for, and that equals are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.baselines import cassandra_table, slices
from bench.load import traffic
from bench.load.traffic import Sample
from bench.measures import cassandra, over_http
from bench.started import processes
from queuey import ids
from tests.servers.plugin import Cassandra


@pytest.fixture
def address(cassandra: Cassandra, monkeypatch: pytest.MonkeyPatch) -> cassandra_table.Address:
    """A node with the baselines' table, named in the environment."""
    found = cassandra_table.Address(tuple(cassandra.contact_points), cassandra.port)
    monkeypatch.setenv("BENCH_CASSANDRA", found.text)
    cassandra_table.prepare(found)
    return found


def test_the_rows_of_the_driver_are_written_and_read(address: cassandra_table.Address) -> None:
    """Batches write as many rows as they count, in the order of ids; slices read what is there, from anywhere."""
    slices.fill(address, 300)
    for work in slices.WORK.values():
        rows, cpu = slices.repeat(work, 2, 0.1)
        assert rows > 0 < cpu
    session = cassandra_table.connect(address)
    written = session.execute("SELECT id FROM messages WHERE queue = 1 AND partition = 1").all()
    read = slices.Read(session, 0)
    assert slices.rows_there(session) == 300
    assert {read() for _ in range(3)} == {slices.ROWS}
    session.cluster.shutdown()
    times = [row[0].time for row in written]
    assert len(times) % slices.ROWS == 0
    assert times == sorted(set(times))


def test_the_plain_view_stores_what_it_is_sent(address: cassandra_table.Address, tmp_path: Path) -> None:
    """Every answer of the view stands for a row with the body of its request."""
    texts = traffic.bodies(3)
    with processes.granian(cassandra.over_http.VIEW, tmp_path, threads=2) as view:
        job = traffic.posts_of_many("/v1/queuey/bench", texts, 1)
        sample = traffic.run(view, job, seconds=30, connections=1, warm=0, count=9)
    session = cassandra_table.connect(address)
    stored = session.execute("SELECT body FROM messages WHERE queue = 1 AND partition = 1").all()
    session.cluster.shutdown()
    assert len(stored) in {sample.answers, sample.answers + 1}, "one more may have been on its way"
    assert {row[0] for row in stored} == set(texts)


def test_a_cheap_id_is_the_uuid_of_its_tick() -> None:
    """The baseline's ids are version 1 UUIDs that sort by their ticks."""
    position = ids.parse_id(slices.Id(0x1EF_1234_89ABCDEF).bytes.hex())
    assert position[0] == 0x1EF_1234_89ABCDEF


def test_an_address_is_read_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes and port come through the environment."""
    address = cassandra_table.Address(("127.0.0.1", "127.0.0.2"), 9142)
    monkeypatch.setenv("BENCH_CASSANDRA", address.text)
    assert cassandra_table.Address.from_environment() == address


def sample(rate: float) -> Sample:
    """A run of which nothing but the rate matters."""
    return Sample(rate=rate, p50=1, p99=1, longest=1, cpu=1, answers=1, size=1)


def test_only_equal_means_are_judged() -> None:
    """The goal stands over pairs of equal workers and threads; the view's best stands beside, without a goal."""
    rates = {"1 x 8 threads": (40.0, 10.0), "1 x 64 threads": (40.0, 20.0), "2 x 32 threads": (40.0, 5.0)}
    samples = {f"{who}, {means}": [sample(pair[at])] for means, pair in rates.items() for at, who in enumerate(SIDES)}
    samples["queuey, 1 x 8 threads, JSON"] = [sample(30.0)]
    verdicts = {verdict.name: verdict for verdict in cassandra.over_http.equals(samples, "", 3, 5)}
    judged = {name: (verdict.value, verdict.standing) for name, verdict in verdicts.items() if verdict.goal}
    assert judged == {
        "1 x 8 threads each: queuey / view": (4.0, "goal met"),
        "1 x 64 threads each: queuey / view": (2.0, "goal missed"),
        "2 x 32 threads each: queuey / view": (8.0, "aim met"),
    }
    assert verdicts["queuey, 1 x 8 threads, JSON / view, 1 x 64 threads"].value == 1.5


SIDES = ("queuey", "view")


def test_the_drivers_best_number_of_callers_counts() -> None:
    """What is asked for is judged at 64 connections, over the fastest baseline."""
    rates = {"queuey, 4 connections": 30, "queuey, 64 connections": 60, "driver, 1 caller": 20, "driver, 2 callers": 40}
    report = cassandra.over_http.compared({name: [sample(rate)] for name, rate in rates.items()}, 1, 2, [])
    standings = {verdict.name: (verdict.value, verdict.standing) for verdict in report.verdicts}
    assert standings == {
        "queuey, 4 connections / driver, 2 callers": (0.75, ""),
        "queuey, 64 connections / driver, 2 callers": (1.5, "goal met"),
    }


def test_no_queue_is_created_twice() -> None:
    """A run sends more than it counts, up to twice the connections; those name queues that no other run names."""
    first, second = (cassandra.scale.creations(range(start, start + 5)).requests for start in (0, 5))
    assert not {*first} & {*second}
    assert len({*first}) == 5 + 2 * over_http.CONNECTIONS


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], object]:
    """What was printed, as JSON."""
    return lambda: json.loads(capsys.readouterr().out)


def test_the_baseline_prints_what_it_measured(
    address: cassandra_table.Address, monkeypatch: pytest.MonkeyPatch, printed: Callable[[], object]
) -> None:
    """The command line of the baseline runs one action with one number of callers."""
    monkeypatch.setattr("sys.argv", ["slices", "insert", "1", "0.05"])
    slices.main()
    match printed():
        case [float(rate), float(cpu)]:
            assert rate > 0 < cpu
        case other:
            pytest.fail(f"unexpected: {other}")
