"""Groups of the service, as Qdo's members take part in them; ``tests/qdo/contract`` has what all groups promise."""
