"""Tests of writes on a real node."""
