"""Claims over HTTP: the routes, bad input, and what is handled at once."""
