"""The use cases, without a store."""
