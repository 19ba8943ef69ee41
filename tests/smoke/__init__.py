"""Real servers, each met once: what make test shows of them. The rest is in make check."""
