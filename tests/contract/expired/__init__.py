"""Tests of messages that become dead letters when they expire."""
