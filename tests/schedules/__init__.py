"""Tests of schedules: their ticks, and over HTTP."""
