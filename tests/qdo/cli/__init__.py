"""Tests of Qdo's command line."""
