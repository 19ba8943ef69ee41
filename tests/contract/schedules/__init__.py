"""Schedules, on both stores."""
