"""The store's applications, queues, offsets, ledger and records."""
