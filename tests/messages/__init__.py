"""Tests of messages: posts, reads, streams, names and read marks over HTTP."""
