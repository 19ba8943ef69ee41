"""Where a client finds its servers and its credential, and what it sends as its Authorization header."""
