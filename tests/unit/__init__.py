"""Tests of the pure modules: without I/O, and with test clocks only."""
