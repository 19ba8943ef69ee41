"""Tests of the client for an event loop, without a node."""
