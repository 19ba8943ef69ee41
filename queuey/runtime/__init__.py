"""What every use case runs on: the event loop, clocks, threads, waiting requests, other workers, counters."""
