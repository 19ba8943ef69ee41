"""What statements on all tables share: consistency levels, lightweight transactions, and the encoding of messages."""
