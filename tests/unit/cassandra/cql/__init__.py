"""The client for an event loop, without a node."""
