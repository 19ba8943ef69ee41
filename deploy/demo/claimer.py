"""A worker of the demo's job queue: ``claimer.py PROFILE QUEUE RECORD``. It ends when it is killed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from queuey.client import Client
from queuey.client.credentials.profile import read_profile

EFFORT_SECONDS = 0.02
TTL = 2.0
"""Seconds after which the jobs of a killed worker come back; short, so that the demo is short."""
TOGETHER = 10
"""Jobs that one request claims; several, so that a killed worker leaves some behind."""


def main(profile_path: Path, queue: str, record_path: str) -> None:
    """Claims jobs until the process is killed, and records each: its process, partition and id.

    A line is written in one piece, so that a kill leaves it whole or not at all.
    """
    profile = read_profile(profile_path)
    record = os.open(record_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with Client(profile.url, key=profile.key, application=profile.application) as client:
        for job in client.job_queue(queue).claim(limit=TOGETHER, ttl=TTL):
            time.sleep(EFFORT_SECONDS)
            os.write(record, f"{os.getpid()} {job.message.partition} {job.message.id}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
