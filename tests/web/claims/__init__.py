"""Claims over HTTP: routes, bad input, and what is handled in the loop."""
