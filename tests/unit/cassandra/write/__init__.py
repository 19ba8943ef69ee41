"""Tests of writes, without a server."""
