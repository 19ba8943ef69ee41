"""Who calls, and what the caller may do: credentials, rights, and the queue as the caller may use it."""
