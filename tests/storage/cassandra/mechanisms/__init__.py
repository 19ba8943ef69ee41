"""Tests that each mechanism is needed."""
