"""Tests of reads on a real node."""
