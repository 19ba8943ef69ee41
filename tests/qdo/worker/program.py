"""A worker as a program: ``python -m tests.qdo.worker.program <profile> <group> <queue> <options as JSON>``."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from qdo.consumer.consumer import AsyncConsumer
from qdo.coordination import ServiceCoordinator
from qdo.settings import Retry, WorkerSettings
from qdo.worker.worker import Worker
from queuey.client import AsyncClient, Message
from queuey.client.credentials.profile import read_profile
from tests.waiting import until, until_async


def handle(message: Message, context: object) -> None:
    """Takes as many seconds as the body says; ``crash``, ``hold``, ``wait`` and ``fork`` do what their names say."""
    _say("begun", message)
    what, _, how = message.body.partition(" ")
    if what == "crash":
        ctypes.string_at(0)
    elif what == "hold":
        ctypes.PyDLL(None).usleep(int(float(how) * 1_000_000))  # In C, with the interpreter: no other thread runs.
    elif what == "wait":
        until(Path(how).exists)
    elif what == "fork":
        _fork()
    else:
        time.sleep(_seconds(message))
    _say("done", message)


async def handle_async(message: Message, context: object) -> None:
    """Waits as many seconds as the body says, waits for a file, or ends a child process.

    It is :func:`handle` for tasks, without the bodies that would block the loop.
    """
    _say("begun", message)
    what, _, how = message.body.partition(" ")
    if what == "wait":
        await until_async(Path(how).exists)
    elif what == "fork":
        _fork()
    else:
        await asyncio.sleep(_seconds(message))
    _say("done", message)


def _fork() -> None:
    """Ends a child process, as a pool does."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    child.start()
    child.terminate()
    child.join(60)
    sys.stdout.write(f"forked {child.exitcode}\n")
    sys.stdout.flush()


def _say(what: str, message: Message) -> None:
    sys.stdout.write(f"{what} {message.body}\n")
    sys.stdout.flush()


def _seconds(message: Message) -> float:
    return float(message.body.partition(" ")[2] or 0)


async def main(profile: str, group: str, queue: str, options: dict[str, Any]) -> int:
    where = read_profile(Path(profile))
    handler: Any = f"{__spec__.name}:handle" if options.get("processes") else handle
    if options.pop("async", False):
        handler = handle_async
    async with AsyncClient(where.url, key=where.key) as client:
        coordinator = ServiceCoordinator(client, group, session_timeout=options.pop("session", 20.0))
        if "attempts" in options:
            options["retry"] = Retry(attempts=options.pop("attempts"), base=0.001, cap=0.001)
        try:
            consumer = AsyncConsumer(client, coordinator, queues=[queue])
            return await Worker(handler, consumer, settings=WorkerSettings(**options)).serve(signals=True)
        finally:
            await coordinator.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="log %(name)s %(message)s")
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4]))))
