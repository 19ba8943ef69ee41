"""What operators ask: why a message is not delivered, what happened when, metrics and health."""
