"""Jobs over whole queues. Each job takes a Spark session and frozen options, and returns a frozen report."""
