"""Callers and their rights: credentials, what each may do, and the queue as a caller may use it."""
