"""Tests of the pure modules: no I/O, no clock but the one they are given."""
