"""What the store knows besides messages: applications, queues, offsets, the ledger."""
