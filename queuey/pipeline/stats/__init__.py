"""How much queues hold, and how far consumer groups are behind."""
