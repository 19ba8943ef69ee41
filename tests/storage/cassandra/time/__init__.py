"""Tests of clocks, ids and buckets of time."""
