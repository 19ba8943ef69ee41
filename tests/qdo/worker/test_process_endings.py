"""Every form of a handler or task in a child process, with every way to end that needs one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qdo.settings import WorkerSettings
from qdo.worker.executors.processes import ProcessExecutor
from qdo.worker.failure import RunResult
from qdo.worker.handlers import Hooks, load_handler
from qdo.worker.runs import Delivery, MessageRun
from qdo.worker.worker import _make_executor
from tests.qdo.unit.samples import ONE, message

pytestmark = pytest.mark.needs_programs
TIMEOUT = 60.0
LIMIT = 1.0
FORMS = {
    "function": None,
    "coroutine_function": None,
    "called": None,
    "awaited": None,
    "plain_jobs": "plain",
    "async_jobs": "async",
    "mixed_jobs": "plain",
    "mixed_jobs ": "async",
}
"""Handlers, and the task that is called."""
ENDINGS = {
    "returns": None,
    "forks": None,
    "sleeps": ("TimeLimit", "and was killed"),
    "swallows": ("TimeLimit", "and was killed"),
    "exits": ("Crashed", "exited with code 3"),
    "is killed": ("Crashed", "ended by SIGKILL"),
    "leaves": ("SystemExit", "0"),
    "returns ": None,
}
"""Kind and text of the failure, or None if the message is handled."""


@pytest.mark.parametrize("form", FORMS)
async def test_endings(form: str) -> None:
    """A message that does not return is a failed attempt with its reason and task; the next message is handled."""
    name, task = f"tests.qdo.worker.endings:{form.strip()}", FORMS[form]
    handler: Any = load_handler(name)
    task_of = getattr(handler, "task_of", lambda _: None)
    settings = WorkerSettings(processes=1, time_limit=LIMIT)
    executor = _make_executor(settings, 9.0, name, handler, task_of, None, Hooks([], lambda _: None), None)
    assert isinstance(executor, ProcessExecutor)
    await executor.open()
    try:
        for ending, failure in ENDINGS.items():
            how = ending.strip()
            body = how if task is None else {"task": task, "args": [how]}
            run = MessageRun([message(1, body=body)], 1)
            ran: RunResult = await asyncio.wait_for(executor.start(run, Delivery(ONE, 1)), TIMEOUT)
            assert ran.handled == (failure is None), (ending, ran.failure)
            if failure is not None:
                assert ran.failure is not None
                assert ran.failure.effect == "fail"
                assert ran.failure.kind.rpartition(".")[2] == failure[0]
                assert failure[1] in ran.failure.text
            if how in {"sleeps", "swallows"} and ran.failure is not None:
                limit = 0.5 if task == "plain" else LIMIT
                what = "the handler" if task is None else f"<Task {task} of {form.partition('_')[0]}>"
                assert ran.failure.text == f"{what} took longer than {limit:g} s and was killed"
    finally:
        await executor.close()
