"""Tests with real processes, started and killed as an operator would."""
