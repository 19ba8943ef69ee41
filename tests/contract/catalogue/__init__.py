"""Applications, queues, offsets, the ledger."""
