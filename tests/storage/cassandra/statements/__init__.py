"""Tests of consistency levels, lightweight transactions and columns."""
