"""Taking messages from a queue: what comes next, the protocol, and the threads that speak it."""
