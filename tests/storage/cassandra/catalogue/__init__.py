"""Tests of queues, offsets and the ledger on a real node."""
