"""The contents of queues, and the lag of consumer groups."""
