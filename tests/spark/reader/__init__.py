"""Tests of a stream's reader, without Spark."""
