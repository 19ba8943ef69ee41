"""The harness, its load generator and its servers: a benchmark that measures wrongly is worse than none."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bench import __main__
from bench.harness import Bench, Measure, Skip, Void, run_measure
from bench.load import signing, traffic, wrk
from bench.load.generator import BadAnswer, Generator, Plan
from bench.load.signing import AccessKey, Signer
from bench.measures import jobs
from bench.results import Report, Verdict
from bench.started import other_python, processes, river, service
from bench.started.processes import Process
from tests.waiting import join

JOB = traffic.posts_of_one("/v1/queuey/bench", traffic.bodies(3))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("server")
    service.prepare(directory).close()
    with service.serve(directory) as server:
        yield server


def test_a_counted_run_ends_with_its_count(server: Process) -> None:
    """A run over several connections counts every answer once and accounts for the server's memory and processes."""
    sample = traffic.run(server, JOB, seconds=30, connections=4, warm=0, count=500)
    assert 500 <= sample.answers < 500 + 4
    assert 0 < sample.p50 <= sample.p99 <= sample.longest
    assert sample.rate > 0
    assert len(server.memory()) == len(server.pids()) >= 2


def test_a_wrong_status_voids_the_run(server: Process) -> None:
    """One answer with an unexpected status voids the run."""
    with pytest.raises(Void, match="201 Created"):
        traffic.run(server, replace(JOB, status=200), seconds=30, connections=2, warm=0, count=10)


def test_a_server_that_does_not_start_voids_the_measure(tmp_path: Path) -> None:
    """The error has the output of the process."""
    command = [sys.executable, "-m", "no_such_module"]
    with pytest.raises(Void, match="no_such_module"), processes.start("absent", command, 1, tmp_path):
        pass


def test_every_side_runs_once_a_round_in_changing_order(tmp_path: Path) -> None:
    """Interleaving runs all sides in every round, and not always in the same order."""
    order: list[str] = []

    def side(name: str) -> int:
        order.append(name)
        return len(order)

    bench = Bench(tmp_path, quick=True, rng=random.Random(4))
    samples = bench.interleave({name: lambda name=name: side(name) for name in "abc"}, 8)  # type: ignore[misc]
    turns = ["".join(order[at : at + 3]) for at in range(0, 24, 3)]
    assert {"".join(sorted(turn)) for turn in turns} == {"abc"}
    assert len(set(turns)) > 1
    assert [len(values) for values in samples.values()] == [8, 8, 8]


@pytest.mark.parametrize(
    ("value", "better", "standing"),
    [
        (5.0, "higher", "aim met"),
        (4.0, "higher", "goal met"),
        (2.0, "higher", "goal missed"),
        (2.5, "lower", "aim met"),
        (4.0, "lower", "goal missed"),
    ],
)
def test_a_verdict_stands_by_its_median(value: float, better: str, standing: str) -> None:
    """Goals and aims are met inclusively, in the direction that is better."""
    goal, aim = (3, 5) if better == "higher" else (3, 2.5)
    verdict = Verdict(
        "figure", [0.1, value, 99], goal=goal, aim=aim, better="higher" if better == "higher" else "lower"
    )
    assert verdict.standing == standing


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    """A skipped measure is a report with its reason, and leaves no directory behind."""

    def run(bench: Bench) -> Report:
        raise Skip("no Java")

    report = run_measure(Measure("peer", "title", run), quick=True, seed=1, parent=tmp_path)
    assert "SKIPPED: no Java" in report.as_text()
    assert "SKIPPED peer: no Java" in __main__.make_summary([report], {"other": "broke"})
    assert "VOID other" in __main__.make_summary([report], {"other": "broke"})
    assert list(tmp_path.iterdir()) == []


WRK = """Running 2s test @ http://127.0.0.1:1/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     3.15ms    1.02ms  18.71ms   83.71%
  Latency Distribution
     50%    3.01ms
     99%    0.90s
  38720 requests in 2.00s, 9.60MB read
Requests/sec:  19360.00
"""


def test_what_wrk_says_is_read() -> None:
    """Rates, quantiles and the server's CPU come out of wrk's own words."""
    sample = wrk.parse_output(WRK, 1.9360, "", JOB)
    assert (sample.rate, sample.p50, sample.p99, sample.longest, sample.cpu) == (19360.0, 3.01, 900.0, 18.71, 50.0)


@pytest.mark.parametrize(
    "output",
    [
        WRK + "  Non-2xx or 3xx responses: 1\n",
        WRK + "  Socket errors: connect 0, read 3\n",
        WRK.replace("38720 requests", "0 requests"),
    ],
)
def test_errors_that_wrk_tells_of_void_a_run(output: str) -> None:
    """A run of wrk with a bad answer or connection, or without any answer, is not a measurement."""
    with pytest.raises(Void, match="complaint"):
        wrk.parse_output(output, 1.0, "complaint", JOB)


KEY: AccessKey = {"id": "QKAAAABBBBCCCCDDDDEE", "secret": "not a secret"}


def test_signatures_are_those_of_botocore() -> None:
    """Whatever the body, path and action."""
    for path, body in (("/", "{}"), ("/sqs/", '{"QueueUrl":"http://127.0.0.1/000000000000/bench"}')):
        text = Signer(KEY, "SendMessage", path).request(body)
        head, _, sent = text.partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert (first, sent) == (f"POST {path} HTTP/1.1", body)
        assert int(headers.pop("Content-Length")) == len(body)
        authorization = headers.pop("Authorization")
        request = AWSRequest("POST", f"http://{signing.HOST}{path}", headers, body)
        request.context["timestamp"] = headers["X-Amz-Date"]
        signer = SigV4Auth(Credentials(KEY["id"], KEY["secret"]), signing.SERVICE, signing.REGION)
        computed = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        assert authorization.endswith(f"SignedHeaders={signing.SIGNED_HEADERS}, Signature={computed}")


@pytest.mark.parametrize("sent", ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_a_connection_that_ends_within_an_answer_is_an_error(sent: str) -> None:
    """Whichever part of the answer came before."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(sent.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        port, request = listener.getsockname()[1], "GET / HTTP/1.1\r\n\r\n"
        once = Plan(port=port, connections=1, requests=[request], status=200, warm=0, seconds=60, count=1, numbered=0)
        generator = Generator(once)
        with pytest.raises(BadAnswer, match="connection closed"):
            generator.run()
        join(server)
    for connection in generator.connections.values():
        connection.sock.close()


@pytest.mark.parametrize("name", ["async_jobs", "embedded"])
def test_our_round_runs_to_its_end(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that sends hears of all jobs, from workers of all kinds."""
    monkeypatch.setattr(jobs, "choose_backlog_size", lambda bench, *, fast: 300)
    bench = Bench(tmp_path, quick=True)
    with contextlib.ExitStack() as stack:
        ours = jobs.prepare_ours_embedded(bench) if name == "embedded" else jobs.serve_ours(bench, stack, 1, name)
        result = jobs.run_round(bench, ours)
    assert result.many is not None
    assert min(result.one, result.many, result.done) > 0
    assert 0 < result.p50 <= result.p99


def test_a_missing_system_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what is missing: packages and the variable for another Python, or Go."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Skip, match="needs Go"):
        river.program()
    with pytest.raises(Skip, match=r"no-such-queue.*BENCH_JOBS_PYTHON"):
        other_python.read_versions(Path(sys.executable), ["no-such-queue"])
    with pytest.raises(Skip, match="BENCH_JOBS_PYTHON"):
        other_python.read_versions(Path("/nowhere/python"), ["rq"])
