"""The contract of claim logs, and claims as use cases on every store."""
