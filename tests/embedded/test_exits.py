"""Short programs that end without a close, whatever they are doing: silent, with the code 0, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuey import embedded
from tests.servers.processes import run_to_end
from tests.servers.served import environment

pytestmark = pytest.mark.needs_programs

OPENED = """
import sys, threading, time
from queuey import embedded
client = embedded.open(sys.argv[1])
client.create_queue("mails", result_ttl=60)
receipt = client.send("mails", "kept")
mails = client.job_queue("mails")
def in_background(work):
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.02)
"""
AT_ONCE = OPENED.partition("mails =")[0]
ASYNC = """
import asyncio, sys
from queuey import embedded
async def main():
    global client, stream
    client = embedded.open_async(sys.argv[1])
    await client.create_queue("mails", result_ttl=60)
    receipt = await client.send("mails", "kept")
    mails = client.job_queue("mails")
    stream = client.stream("mails")
    {use}
    await asyncio.sleep(0.02)
asyncio.run(main())
"""
TASKS = """
from qdo import Jobs
jobs = Jobs("sums", client=client, result_ttl=60)
@jobs.task
def add(one, two): return one + two
called = add.send(1, 2)
"""
TESTED = """
import pytest, sys
from pathlib import Path
folder = Path(sys.argv[1]).parent
(folder / "test_app.py").write_text('''
import threading, time
from contextlib import suppress
from queuey.client import ClientError
pytest_plugins = ["queuey.testing"]
def test_app(queuey):
    queuey.create_queue("mails", result_ttl=60)
    receipt = queuey.send("mails", "kept")
    def use():
        with suppress(ClientError):  # The fixture closes its client.
            USE
    threading.Thread(target=use, daemon=True).start()
    time.sleep(0.02)
''')
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", str(folder / "test_app.py")]))
"""

PROGRAMS = {
    "nothing": AT_ONCE,
    "a claim in the main thread": OPENED + "job = next(mails.claim())",
    "a stream in the main thread": OPENED + "stream = client.stream('mails'); next(stream)",
    "a waiting result": OPENED + "in_background(receipt.result)",
    "a result with a timeout": OPENED + "in_background(lambda: receipt.result(timeout=60))",
    "a waiting claim": OPENED + "mails.receive(); in_background(lambda: list(mails.claim()))",
    "a handler at work": OPENED + "in_background(lambda: mails.run(lambda job: time.sleep(60)))",
    "a stream": OPENED + "in_background(lambda: list(client.stream('mails')))",
    "a tail": OPENED + "in_background(lambda: list(client.tail('mails')))",
    "a read that waits": OPENED + "in_background(lambda: client.read('mails', since=9999999999, wait=20))",
    "sends": OPENED + "in_background(lambda: [client.send('mails', 'x') for _ in range(10 ** 9)])",
    "async: nothing": ASYNC.format(use="pass"),
    "async: a waiting result": ASYNC.format(use="asyncio.create_task(receipt.aresult())"),
    "async: a claim": ASYNC.format(use="await mails.receive(); asyncio.create_task(anext(mails.claim()))"),
    "async: a stream": ASYNC.format(use="await anext(stream); asyncio.create_task(anext(stream))"),
    "tasks: nothing": OPENED + TASKS,
    "tasks: a waiting result": OPENED + TASKS + "in_background(called.result)",
    "tasks: after a run": OPENED + TASKS + "jobs.run_all(); assert called.result() == 3; in_background(receipt.result)",
    "testing: a waiting result": TESTED.replace("USE", "receipt.result()"),
    "testing: a claim": TESTED.replace("USE", "list(queuey.job_queue('mails').claim())"),
    "testing: a stream": TESTED.replace("USE", "list(queuey.stream('mails'))"),
}


def run(program: str, file: Path) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-c", program, str(file)], env=environment())


@pytest.fixture(params=[1, pytest.param(20, marks=pytest.mark.slow)], ids=["once", "often"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Files for the runs of a program: a fault at its end shows in some of them only."""
    return (tmp_path / f"{number}" / "jobs.db" for number in range(request.param))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_in_silence(name: str, files: Iterator[Path]) -> None:
    """A program that ends while it waits, claims or streams prints nothing, and what it was told is stored is there."""
    for file in files:
        file.parent.mkdir()
        ended = run(PROGRAMS[name], file)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert not file.with_name("jobs.db-wal").exists()
        if not name.startswith("testing"):
            assert ended.stdout == ""
            with embedded.open(file) as client:
                assert next(iter(client.read_all("mails", since=0))).body == "kept"


LATE = (
    OPENED
    + """
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    [claimed] = mails.receive()
    assert mails.ack(claimed, results={claimed.receipt: 5}) == []
    print(receipt.status().status, receipt.result(timeout=60))
threading.Thread(target=late).start()
"""
)


def test_a_thread_that_outlives_the_main_thread(tmp_path: Path) -> None:
    """Threads that go on when the main thread has ended, and with it the pools of Python, use the service as before."""
    ended = run(LATE, tmp_path / "jobs.db")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done 5\n", "")


AT_EXIT = (
    """
import atexit
def use():
    try:
        print(client.queue_page().queues[0].name)
    except Exception as error:
        print(error)
"""
    + OPENED
)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (AT_EXIT + "atexit.register(use)", "mails\n"),
        (AT_EXIT.replace("import sys", "atexit.register(use)\nimport sys"), "the client is closed\n"),
    ],
    ids=["registered after the open", "registered before"],
)
def test_functions_that_run_at_the_exit(program: str, printed: str, tmp_path: Path) -> None:
    """A function that was registered after the open uses the service; one registered before finds it closed."""
    ended = run(program, tmp_path / "jobs.db")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")
