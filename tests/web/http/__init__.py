"""The HTTP server by itself: connections that are given bytes, without sockets."""
