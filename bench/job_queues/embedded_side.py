"""Queuey embedded in the producer and in the worker: ``python -m bench.job_queues.embedded_side``."""

from __future__ import annotations

import os

from bench.job_queues.queuey_side import Queuey, jobs
from bench.job_queues.side import FILE
from qdo import Claims, Worker
from queuey import embedded


def side() -> Queuey:
    return Queuey(embedded.open(os.environ[FILE]))


if __name__ == "__main__":
    Worker(jobs, Claims(embedded.open_async(os.environ[FILE]), jobs.queues)).run()
