"""Writing messages: batches, the width of buckets, and undoing what failed."""
