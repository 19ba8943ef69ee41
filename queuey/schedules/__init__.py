"""Schedules: messages that are posted at scheduled times."""
