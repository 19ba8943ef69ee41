"""Applications, queues, offsets and the ledger: rows that are changed by lightweight transactions."""
