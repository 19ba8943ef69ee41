"""What a client decides without a server."""
