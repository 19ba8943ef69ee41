"""Every form of a handler or task in a child process, with every way to end that needs one."""

from __future__ import annotations

import asyncio
import sys

import pytest

from qdo.worker.executors.processes import ChildProcess, ChildSetup
from queuey.client import Outgoing
from tests.qdo.worker.claiming.test_claims import MODULE, make, wait_until_drained
from tests.qdo.worker.conftest import Workers
from tests.qdo.worker.test_processes import book

__all__ = ["book"]

LIMIT = 1.0
FORMS = {"handle": None, "handle_async": None, "mixed_jobs": "plain", "mixed_jobs ": "async"}
"""Handlers, and the task that is called."""
ENDINGS = {
    "return": None,
    "fork": None,
    "sleep 600": ("TimeLimit", "and was killed"),
    "swallow": ("TimeLimit", "and was killed"),
    "exit": ("Crashed", "exited with code 3"),
    "kill": ("Crashed", "ended by SIGKILL"),
    "leave": ("SystemExit", "0"),
    "return too": None,
}
"""Kind and text of the failure, or None if the message is handled."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("book")
async def test_endings(workers: Workers, form: str) -> None:
    """A message that does not return is a failed attempt with its reason and task; the next message is handled."""
    queue, task = await workers.system.queue(max_deliveries=1), FORMS[form]
    calls = [Outgoing(how) if task is None else Outgoing(json={"task": task, "args": [how]}) for how in ENDINGS]
    sent = await workers.system.client.send_many(queue.name, calls)
    worker = make(workers, f"{MODULE}:{form.strip()}", queue, processes=1, time_limit=LIMIT)
    failures = {receipt.id: ENDINGS[how] for receipt, how in zip(sent, ENDINGS, strict=True) if ENDINGS[how]}
    async with workers.serving(worker):
        await wait_until_drained(workers, queue)
        letters = await workers.letters(queue, count=len(failures))
    assert {letter.id for letter in letters} == failures.keys()
    what = "the handler" if task is None else f"task {task}"
    limited = f"{what} took longer than {0.5 if task == 'plain' else LIMIT:g} s and was killed"
    for letter in letters:
        kind, text = failures[letter.id] or ("", "")
        assert (letter.cause.error.rpartition(".")[2], text in letter.cause.text) == (kind, True)
        assert kind != "TimeLimit" or letter.cause.text == limited


async def test_a_kill_that_is_cancelled_closes_the_pipe() -> None:
    """A child's pipe is closed even if nobody waits any more until the child has ended."""
    child = ChildProcess(
        ChildSetup(sys.path, None, f"{MODULE}:handle", None, LIMIT), lambda _run: (LIMIT, "the handler")
    )
    await child.start()
    killing = asyncio.create_task(child.kill())
    await asyncio.sleep(0)
    killing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killing
    assert child.tokens.reader.closed
    await child.kill()
