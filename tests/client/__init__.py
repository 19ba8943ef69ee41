"""The HTTP client: its core on scripted servers, the whole client on the real application."""
