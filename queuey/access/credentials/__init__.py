"""Readers of credentials: from the ``Authorization`` header to the caller."""
