"""Clocks and ids."""
