"""Messages that become dead letters when they expire."""
