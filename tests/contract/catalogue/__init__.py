"""Tests of applications, queues, offsets and the ledger."""
