"""The HTTP client: its core on scripted servers, all of it on the real application."""
