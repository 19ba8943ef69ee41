"""Attempts at messages in many simulated histories."""
