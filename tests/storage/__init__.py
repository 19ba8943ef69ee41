"""Tests of parts that both stores use."""
