"""The simulated nodes over connections: bytes of the native protocol, and the client that speaks it."""
