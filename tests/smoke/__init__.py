"""Real servers, each used once: the part of them that make test covers. The rest is in make check."""
