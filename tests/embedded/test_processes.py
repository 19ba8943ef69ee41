"""Embedded services and processes: forks, exits without a close, and other processes that use the same file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qdo import Claims, StopWorker, Worker
from queuey import embedded
from queuey.client import InvalidArgument, Message
from tests.servers.processes import run_to_end
from tests.servers.served import Served, environment

pytestmark = pytest.mark.needs_programs


def test_a_child_leaves_the_file_of_its_parent(tmp_path: Path) -> None:
    """A forked child neither uses, closes nor opens what its parent has open: it would have no locks on it.

    Else the parent, at its close, would delete the log that the child writes to.
    """
    file, closed = tmp_path / "jobs.db", tmp_path / "closed.db"
    embedded.open(closed).close()
    with embedded.open(file) as client:
        client.create_queue("mails")
        child = os.fork()
        if not child:
            code = 1
            try:
                with pytest.raises(InvalidArgument, match="fork first"):
                    client.send("mails", "x")
                client.close()
                with pytest.raises(InvalidArgument, match="when it forked"):
                    embedded.open(file)
                with embedded.open(closed) as own:
                    own.create_queue("mails")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.send("mails", "of the parent")
    with embedded.open(closed) as client:
        assert list(client.queue_names()) == ["mails"]


PROGRAM = """
import atexit, sys, threading
from queuey import embedded
atexit.register(lambda: print("queuey-writer" in [thread.name for thread in threading.enumerate()]))
client = embedded.open(sys.argv[1])
client.create_queue("mails")
client.send("mails", "not closed")
client.job_queue("mails").claim(idle=0).__next__()
"""


def test_a_program_ends_without_a_close(tmp_path: Path) -> None:
    """The end of the program ends the service, quietly, and closes the file."""
    file = tmp_path / "jobs.db"
    ended = run_to_end([sys.executable, "-c", PROGRAM, str(file)], env=environment())
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")
    assert not file.with_name("jobs.db-wal").exists()


def test_a_service_and_a_program_use_one_file(tmp_path: Path) -> None:
    """What one stores wakes the other, and each sees the queues of the other."""
    served_file = tmp_path / "data" / "jobs.db"
    with Served(tmp_path, ["--data", str(served_file)]) as served, embedded.open(served_file) as client:
        client.create_queue("mails")
        with served.client() as other:
            other.send("mails", "over HTTP")
            assert [job.body for job in client.job_queue("mails").claim(idle=0)] == ["over HTTP"]
            client.send("mails", "embedded")
            assert [job.body for job in other.job_queue("mails").claim(idle=0)] == ["embedded"]


def test_a_worker_runs_on_it(tmp_path: Path) -> None:
    """A worker of Qdo claims from a store in its own process."""
    file = tmp_path / "jobs.db"
    with embedded.open(file) as client:
        client.create_queue("mails")
        client.send("mails", "hello")
    handled = []

    def handle(message: Message, _context: object) -> None:
        handled.append(message.body)
        raise StopWorker

    assert Worker(handle, Claims(embedded.open_async(file), ["mails"])).run() == 0
    assert handled == ["hello"]
