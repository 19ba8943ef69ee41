"""What a consumer group promises to its members, on every store."""
