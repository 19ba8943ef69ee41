"""How commands end after Ctrl-C, a closed pipe, a full disk, or the loss of the service."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import pytest

from queuey.client import Client
from tests.commands import Run
from tests.contract.samples import eventually
from tests.servers.processes import children, ending
from tests.servers.served import Served, environment


def _count_unread_bytes(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _sleeps(pid: int) -> bool:
    """Returns whether a process waits. Python misses a signal that arrives just before it begins to wait for input."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_ctrl_c_in_a_feed(served: Served, run: Run, client: Client, queue: str) -> None:
    """Ctrl-C prints how many messages are stored and how to continue; continuing sends the rest once."""
    command = [sys.executable, "-m", "queuey", "send", queue, "--from", "-", "-p", "1", "--batch", "2"]
    variables = environment(QUEUEY_PROFILE=str(served.profile_path))
    with ending(subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        standard_input = process.stdin
        process.stdin.write(b"1\n2\n3\n4\n")
        process.stdin.flush()
        assert eventually(lambda: client.info(queue).count == 4)
        # The next line is read when the lines before it have been answered.
        process.stdin.write(b"5\n")
        process.stdin.flush()
        assert eventually(lambda: not _count_unread_bytes(standard_input) and _sleeps(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        err = process.stderr.read().decode()
    assert "4 messages were stored before." in err
    assert "Traceback" not in err
    skip = re.search(r"--skip (\d+)", err)
    assert skip is not None
    remaining = b"1\n2\n3\n4\n5\n6\n"
    assert run("send", queue, "--from", "-", "-p", "1", "--skip", skip[1], stdin=remaining).code == 0
    assert [message.body for message in client.read_all(queue)] == [1, 2, 3, 4, 5, 6]


UNSHARE = ["unshare", "--user", "--pid", "--fork"]
"""Runs a program as process 1, as a container does, where that is allowed."""


@pytest.mark.needs_programs
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["queuey serve", "qdo work handlers:handle --queue q"])
@pytest.mark.parametrize("first", [False, True], ids=["", "process 1"])
def test_a_signal_in_the_first_moments(first: bool, command: str, number: int, tmp_path: Path) -> None:  # noqa: FBT001
    """While modules are still imported, a signal ends a command at once and without a word, also as process 1."""
    if first and subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("this machine lets no process be the first of its own namespace")
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    program, *arguments = command.split()
    run = [*(UNSHARE if first else []), sys.executable, "-m", program, *arguments]
    variables = environment(PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    with ending(
        subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, text=True)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        os.kill(children(process.pid)[0] if first else process.pid, number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number if first else -number, "")


@pytest.mark.parametrize("arguments", [["--json"], ["--raw"], []])
def test_full_disk(served: Served, client: Client, queue: str, arguments: list[str]) -> None:
    """A result that cannot be written is a failure, reported in one line."""
    client.send(queue, "x")
    command = [sys.executable, "-m", "queuey", "read", queue, *arguments]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(QUEUEY_PROFILE=str(served.profile_path)),
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, b"The output is not complete: No space left on device.\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(served: Served, client: Client, queue: str, closed: str) -> None:
    """Stored messages are a success, although no output can be written."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "queuey", "send", queue, "x"]
    variables = environment(QUEUEY_PROFILE=str(served.profile_path))
    ended = subprocess.run(command, env=variables, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert [message.body for message in client.read_all(queue)] == ["x"]


def test_direction_of_writing(run: Run, client: Client, queue: str) -> None:
    """What turns the direction of writing is shown, not obeyed: in bodies and in what a command says of a name."""
    client.send(queue, "a\u202eb")
    assert "a\\u202eb" in run("read", queue).text
    assert f"\\u202e{queue[:20]}" in run("queue", "delete", f"\u202e{queue[:20]}", "--yes").err


@pytest.mark.needs_programs
def test_tail_says_when_the_service_is_away(tmp_path: Path) -> None:
    """Tail says once that the service is away and once that it is back, and goes on where it was."""
    with Served(tmp_path) as first, first.client() as client:
        client.create_queue("q")
        client.send("q", "before")
        with first.command("tail", "q", "--raw", "--limit", "2") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "before\n"
            first.kill()
            assert process.stderr.readline().startswith("The service cannot be reached; waiting for it: http://")
            with Served(tmp_path, port=first.port) as second, second.client() as again:
                again.send("q", "after")
                assert process.stdout.readline() == "after\n"
                assert process.wait(60) == 0
                assert process.stderr.read() == "The service answers again.\n"
