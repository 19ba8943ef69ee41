"""Tests of the console in process: every page, who sees what, sessions and forms."""
