"""Tests of statistics and lag."""
