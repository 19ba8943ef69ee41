"""Tests of schedules, on both stores."""
