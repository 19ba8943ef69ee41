"""The application whose tasks Celery's workers run; the test that starts them names the broker.

Each task appends a line to the file ``RECORDS``: its name, its argument, and what happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery

RECORDS = Path(os.environ["RECORDS"])

app = Celery("tasks", broker=os.environ["BROKER"], backend=f"file://{os.environ['RESULTS']}")
app.conf.update(
    broker_transport_options={
        "region": "eu-west-1",
        "queue_name_prefix": os.environ["PREFIX"],
        "visibility_timeout": int(os.environ["VISIBILITY"]),
        "wait_time_seconds": 2,
        "polling_interval": 0.1,
    },
    broker_connection_retry_on_startup=True,
    task_default_queue="default",
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
)


def task(**options: Any) -> Callable[[Callable[..., Any]], Any]:  # noqa: ANN401 - Celery's
    decorator: Callable[[Callable[..., Any]], Any] = app.task(**options)
    return decorator


def record(*what: object) -> None:
    """Appends a line in one piece."""
    with RECORDS.open("a") as lines:
        lines.write(" ".join(map(str, what)) + "\n")


@task()
def add(x: int, y: int) -> int:
    record("add", x, y)
    return x + y


@task()
def echo(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return value


@task()
def at(due: float) -> float:
    """Returns how many seconds after its due time it ran."""
    return time.time() - due


@task(acks_late=True)
def long(name: str, seconds: float) -> str:
    """Takes its time, and is acknowledged at its end; a second delivery ends immediately."""
    again = f"begun {name} " in RECORDS.read_text()
    record("begun", name, time.time())
    if not again:
        time.sleep(seconds)
    record("done", name, time.time())
    return name
