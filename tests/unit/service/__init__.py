"""Tests of the use cases, without a store."""
