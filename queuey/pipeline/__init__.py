"""Jobs over whole queues: each takes a session of Spark and a frozen description, and returns a frozen report."""
