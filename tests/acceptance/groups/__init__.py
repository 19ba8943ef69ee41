"""Members of a consumer group in several languages."""
