"""How a running service ends, and what does not end it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

import pytest

from queuey.storage.sqlite import check
from queuey.storage.sqlite.connection import FILE
from tests.servers.processes import is_alive
from tests.servers.served import Served
from tests.waiting import until


class HalfRequest:
    """A POST whose body is only half sent."""

    def __init__(self, served: Served, queue: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", served.port), timeout=100)
        head = f"POST /v1/queuey/{queue} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
        self.socket.sendall(f"{head}Authorization: Application {served.profile.key}\r\n\r\nhello".encode())

    def finish(self) -> bytes:
        self.socket.sendall(b"world")
        return self.answer()

    def answer(self) -> bytes:
        with self.socket:
            return b"".join(iter(lambda: self.socket.recv(65_536), b""))


@pytest.mark.parametrize("workers", [1, 3])
def test_sigterm_when_idle(tmp_path: Path, workers: int) -> None:
    """SIGTERM ends an idle service with 0 and leaves no process behind; its file is whole by itself, without a WAL."""
    with Served(tmp_path, ["--workers", str(workers)]) as served:
        until(lambda: len(served.workers()) == workers)
        pids = served.workers()
        with served.client() as client:
            client.create_queue("q")
            client.send("q", "x")
            assert served.end(signal.SIGTERM) == 0
        assert not any(map(is_alive, pids))
    assert check(served.data) == []
    assert not list(served.data.glob("*-wal"))


def variables_with_startup_code(directory: Path, code: str) -> dict[str, str]:
    path = directory / "hindered"
    path.mkdir()
    (path / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": str(path)}


HANGS = """
import multiprocessing, threading
from queuey.storage.sqlite import SqliteStore
close = SqliteStore.close
def hang(store, timeout=10.0):
    close(store, timeout)
    if multiprocessing.parent_process() is not None:
        threading.Event().wait()
SqliteStore.close = hang
"""


def test_a_store_that_does_not_close_does_not_hold_it_up(tmp_path: Path) -> None:
    """A worker whose store's driver hangs at the end still ends within the shutdown timeout; the exit code is 0."""
    with Served(
        tmp_path, ["--shutdown-timeout", "1"], variables=variables_with_startup_code(tmp_path, HANGS)
    ) as served:
        pids = served.workers()
        assert served.end(signal.SIGTERM) == 0
        assert "Killing" not in served.output
        assert not any(map(is_alive, pids))


def test_sigint_of_a_terminal(tmp_path: Path) -> None:
    """Ctrl-C reaches every process of the group and still is an orderly stop."""
    with Served(tmp_path) as served:
        os.killpg(served.process.pid, signal.SIGINT)
        assert served.end() == 0
        assert "Traceback" not in served.output


def test_request_under_way_is_finished(tmp_path: Path) -> None:
    """A request that has begun when SIGTERM arrives is answered and stored; new connections are refused."""
    with Served(tmp_path) as served:
        with served.client() as client:
            client.create_queue("q")
        half = HalfRequest(served, "q")
        with served.client() as client:
            client.heartbeat()
        served.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(served.port))
        answer = half.finish()
        assert b" 201 " in answer.splitlines()[0]
        assert served.end() == 0
    with Served(tmp_path) as again, again.client() as client:
        assert [message.body for message in client.read("q").messages] == ["helloworld"]


def test_hanging_client_does_not_hold_it_up(tmp_path: Path) -> None:
    """A client that never finishes its request is cut off within the shutdown timeout; the exit code is 0."""
    with Served(tmp_path, ["--shutdown-timeout", "1"]) as served:
        with served.client() as client:
            client.create_queue("q")
        half = HalfRequest(served, "q")
        with served.client() as client:
            client.heartbeat()
        pids = served.workers()
        assert served.end(signal.SIGTERM) == 0
        assert "did not finish within the shutdown timeout" in served.output
        assert not any(map(is_alive, pids))
        assert half.answer() == b""
    assert check(served.data) == []


def test_second_signal_stops_at_once(tmp_path: Path) -> None:
    """A second signal ends the service at once; no process stays."""
    with Served(tmp_path, ["--shutdown-timeout", "600"]) as served:
        with served.client() as client:
            client.create_queue("q")
        half = HalfRequest(served, "q")
        pids = served.workers()
        served.process.send_signal(signal.SIGTERM)
        served.wait_for("Stopping")
        assert served.end(signal.SIGTERM) == 128 + signal.SIGTERM
        until(lambda: not any(map(is_alive, pids)))
        half.socket.close()


def test_hangup_is_ignored(tmp_path: Path) -> None:
    """Closing the terminal stops neither the service nor its workers."""
    with Served(tmp_path) as served:
        pids = served.workers()
        os.killpg(served.process.pid, signal.SIGHUP)
        with served.client() as client:
            client.heartbeat()
        assert served.workers() == pids
        assert served.end(signal.SIGTERM) == 0


def test_worker_that_cannot_open_the_store(tmp_path: Path) -> None:
    """A new worker that finds the store unusable says why in a line, and the service serves once it is usable again."""
    import apsw  # noqa: PLC0415 - only this test writes to the file behind the store's back

    with Served(tmp_path) as served:
        connection = apsw.Connection(str(served.data / FILE))
        connection.set_busy_timeout(60_000)
        version = connection.pragma("user_version")
        connection.pragma("user_version", 9999)
        for process in served.workers():
            os.kill(process, signal.SIGKILL)
        until(lambda: served.output.count("The worker cannot start") >= 2, process=served.process)
        connection.pragma("user_version", version)
        connection.close()
        with served.client(deadline=300) as client:
            client.heartbeat()
        assert served.end(signal.SIGTERM) == 0
        assert "Traceback" not in served.output


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """When the parent is killed, its workers stop in order and free the port for the next start."""
    with Served(tmp_path) as served:
        pids = served.workers()
        assert served.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not any(map(is_alive, pids)))
        with Served(tmp_path, port=served.port) as again, again.client() as client:
            client.heartbeat()


@pytest.mark.parametrize("count", [2, 8])
def test_signals_in_a_burst(tmp_path: Path, count: int) -> None:
    """However many SIGTERMs a supervisor sends to the whole group, nothing hangs and nothing stays."""
    with Served(tmp_path) as served:
        pids = served.workers()
        for _ in range(count):
            for process in pids:
                with contextlib.suppress(ProcessLookupError):  # The first one may have ended it.
                    os.kill(process, signal.SIGTERM)
        until(lambda: not any(map(is_alive, pids)) or served.workers() != pids)
        assert served.end(signal.SIGTERM) in {0, 1}


def _refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
