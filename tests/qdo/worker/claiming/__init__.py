"""Tests of workers that claim, and of tasks."""
