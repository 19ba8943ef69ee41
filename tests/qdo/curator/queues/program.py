"""A consumer as a process: prints each message that it is given, after some ms, until it is killed.

::

    python -m tests.qdo.curator.queues.program HOSTS PATH LOCK_PATH SESSION_SECONDS PAUSE_SECONDS
"""

from __future__ import annotations

import queue
import sys
import time

from kazoo.client import KazooClient

from qdo.curator import TEXT, QueueBuilder


def main() -> None:
    """Consumes, and prints the begin and end of each message. After a lost session it builds the queue again."""
    hosts, path, lock_path, session, pause = sys.argv[1:]
    client = KazooClient(hosts, timeout=float(session))
    client.start(60)

    def consume(text: str) -> None:
        sys.stdout.write(f"begun {text}\n")
        sys.stdout.flush()
        time.sleep(float(pause))
        sys.stdout.write(f"done {text}\n")
        sys.stdout.flush()

    while True:
        states: queue.Queue[str] = queue.Queue()
        with QueueBuilder(client, consume, TEXT, path, lock_path=lock_path, on_state=states.put).build_queue():
            while states.get() != "lost":
                pass


if __name__ == "__main__":
    main()
