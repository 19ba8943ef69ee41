"""Workers that share out the partitions of Queuey's queues."""

__version__ = "0.1.0"
