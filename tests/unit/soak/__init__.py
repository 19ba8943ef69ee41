"""Tests of the checks of a soak run."""
