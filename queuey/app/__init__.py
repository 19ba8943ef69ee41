"""Puts the service together: the store, the use cases, the operations of all rooms, and the server."""
