"""The HTTP server by itself: connections that receive bytes without sockets."""
