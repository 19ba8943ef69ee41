"""``queuey`` with a profiler in its workers: ``python -m bench.call_counts.profiled_service serve …``.

``multiprocessing`` spawns each worker, which therefore imports this module as ``__mp_main__`` first and installs the
profiler. The profiler receives commands over a connection to the port in the environment.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from multiprocessing.connection import Connection

from bench.call_counts.profiler import Profiler

PORT = "BENCH_PROFILER_PORT"
"""Environment variable with the local port of the measuring process."""


def take_orders(profiler: Profiler, port: int) -> None:
    """Starts and stops counting as the measuring process commands, until that closes the connection.

    Before it stops, it waits until no function is called.
    """
    # The service blocks these signals in all of its threads and waits for them in one.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with Connection(socket.create_connection(("127.0.0.1", port)).detach()) as orders:
        try:
            while True:
                if orders.recv() == "begin":
                    profiler.begin()
                    orders.send(None)
                else:
                    profiler.settle()
                    orders.send(profiler.end())
        except EOFError:
            pass


if __name__ == "__mp_main__":
    installed = Profiler()
    threading.Thread(target=take_orders, args=(installed, int(os.environ[PORT])), daemon=True).start()
    installed.install()

if __name__ == "__main__":
    from queuey.__main__ import main

    main()
