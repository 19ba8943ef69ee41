"""The table of docs/access.md: the rights that ``qdo work`` needs for its options, tested with exactly these rights."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import queuey.cli
from queuey.client import Client
from tests.access.test_access_table import rows
from tests.commands import Ended, Run, make_runner
from tests.qdo.cli.conftest import Group, ServiceGroup
from tests.qdo.cli.workers import Hire
from tests.servers.served import Served, environment

ROWS = rows("options of qdo work")
COLUMNS = ["queue of dead letters", "the same, if it does not exist"]
With = Callable[..., Hire]


@pytest.fixture
def group(service_group: ServiceGroup) -> ServiceGroup:
    """A group that other processes can reach."""
    return service_group


@pytest.fixture
def with_key(served: Served, run: Run, group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> With:
    """Starts workers whose key has these verbs for these queues; without queues, the key has no limits."""
    admin = make_runner("queuey", queuey.cli.main, monkeypatch)

    def hire(verbs: Iterable[str], *queues: str, application: str = "queuey", mirror: bool = False) -> Hire:
        limits = ["--allow", ",".join(verbs), "--queues", ",".join(queues)] if queues else []
        made = admin("app", "key-add", application, *limits, "--data", str(served.data), "--json").json
        variables = {"QUEUEY_URL": served.profile.url, **group.variables}
        variables |= {"QUEUEY_APP": "queuey", "QUEUEY_KEY": made["secret"]}
        return Hire(tmp_path, environment(**variables, QDO_SESSION_TIMEOUT="20", QDO_MIRROR="on" if mirror else "off"))

    return hire


@pytest.fixture
def in_this_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Ended]]:
    """Runs a worker that exits during its start in this process, and restores signal handlers and logging."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def work(hire: Hire, *command: str) -> Ended:
        with monkeypatch.context() as patched:
            patched.delenv("QUEUEY_PROFILE")
            for name, value in hire.variables.items():
                patched.setenv(name, value)
            patched.chdir(hire.directory)
            patched.setattr(sys, "path", list(sys.path))
            patched.setattr(logging.root, "handlers", [])
            patched.setattr(logging.root, "level", logging.root.level)
            return run("work", *command)

    yield work
    for number, handler in before.items():
        signal.signal(number, handler)


CELLS = [
    pytest.param(
        row["options of qdo work"], row["its queues"], row[column], id=f"{row['options of qdo work']}, {column}"
    )
    for row in ROWS
    for column in COLUMNS
    if row[column] != "-" or column == COLUMNS[0]
]
ENOUGH = [
    *[cell for cell in CELLS if COLUMNS[1] in str(cell.id) or cell is CELLS[0]],
    *[
        pytest.param(*cell.values, id=cell.id, marks=pytest.mark.slow)
        for cell in CELLS[1:]
        if COLUMNS[1] not in str(cell.id)
    ],
]
"""Cases in which the queue of dead letters exists and a worker needs fewer rights; they are slow."""


def resolve_case(queue: str, options: str, here: str, there: str) -> tuple[list[str], str, dict[str, str]]:
    """Returns the options for a queue, its queue of dead letters, and the queue for each verb of the page."""
    dead = f"{queue}-failed" if "OTHER" in options else f"{queue}.dead"
    verbs = {verb: name for name, cell in ((queue, here), (dead, there)) for verb in cell.split(", ") if verb != "-"}
    # The environment says whether a worker mirrors; see with_key.
    return options.replace("NAME", queue).replace("OTHER", dead).replace("--mirror", "").split(), dead, verbs


@pytest.mark.parametrize(("options", "here", "there"), ENOUGH)
def test_the_rights_of_the_page_are_enough(
    with_key: With, client: Client, queue: str, options: str, here: str, there: str
) -> None:
    """A worker with exactly these rights begins, and stores the dead letter of a message that fails."""
    words, dead, verbs = resolve_case(queue, options, here, there)
    client.send(queue, "poison", partition=3)
    if there == "send":
        client.create_queue(dead)
    hire = with_key(verbs, queue, dead, mirror="--mirror" in options)
    with hire("handlers:fail", *words, "--attempts", "1") as worker:
        worker.wait_for_log("ends the worker|and skipped|attempt 1 failed" if there == "-" else f"moved to {dead}")
        assert (worker.wait_for_end() == 3) if "stop" in words else (worker.end() == 0)
    if there != "-":
        assert [message.body for message in client.read_all(dead, partitions="*", delay=False)] == ["poison"]
        assert client.info(dead).partitions == (1 if there == "send" else 3)


@pytest.mark.parametrize(("options", "here", "there"), CELLS)
def test_a_missing_right_is_named_at_the_start(
    with_key: With,
    in_this_process: Callable[..., Ended],
    client: Client,
    queue: str,
    options: str,
    here: str,
    there: str,
) -> None:
    """Without any one of these rights a worker exits with 1 before it joins, and names the right and the queue.

    A worker of a pattern logs the missing right, and begins if it may list queues at all.
    """
    words, dead, verbs = resolve_case(queue, options, here, there)
    if there == "send":
        client.create_queue(dead)
    for verb, name in verbs.items():
        hire = with_key(verbs.keys() - {verb} or {"measure"}, queue, dead, mirror="--mirror" in options)
        begins = "--pattern" in words and verb not in {"read", "claim"}
        if begins:
            with hire("handlers:fail", *words) as worker:
                worker.wait_for_log("joined the group")
                assert worker.end() == 0
            log = "".join(worker.log)
        else:
            ended = in_this_process(hire, "handlers:fail", *words)
            assert ended.code == 1
            log = ended.err
        assert ("joined the group" in log) == begins
        if verb == "claim":
            assert "use --coordination zookeeper://" in log
        # Without the right to list queues the service refuses that first.
        if verb != "read" or begins:
            assert f"{verb}, because '{name}' does not exist" in log or f"{verb} for '{name}'" in log
        assert verb in log


def test_a_worker_of_another_application(
    with_key: With, run: Run, served: Served, client: Client, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of another application, which may read the queue, joins no groups of its owner."""
    other = f"app{queue}"
    make_runner("queuey", queuey.cli.main, monkeypatch)("app", "create", other, "--data", str(served.data))
    client.update_queue(queue, principals=[f"app:{other}"])
    client.send(queue, "hello", partition=1)
    hire = with_key((), application=other)
    with hire("handlers:handle", "--queue", queue) as worker:
        assert worker.wait_for_end() == 1
    assert f"send for '{queue}.dead'" in "".join(worker.log)
    with hire("handlers:handle", "--queue", queue, "--on-failure", "skip") as worker:
        assert worker.wait_for_end() == 1
    assert "Keys of the application and users with a role join groups" in "".join(worker.log)
