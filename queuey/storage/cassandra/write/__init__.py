"""Writes messages: coalesced batches, posts with idempotency keys, named messages, bulk loads, and undo writes."""
