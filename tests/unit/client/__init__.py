"""Tests of decisions of a client, without a server."""
