"""Queues, offsets, the ledger."""
