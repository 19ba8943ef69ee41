"""Unit tests of schedules."""
