"""Two fuzzers of the HTTP service."""
