"""Which messages are handled next, and how far each partition is handled."""
