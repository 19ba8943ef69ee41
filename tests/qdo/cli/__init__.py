"""Qdo's command line."""
