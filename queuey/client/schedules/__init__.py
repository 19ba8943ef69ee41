"""Schedules of an application."""
