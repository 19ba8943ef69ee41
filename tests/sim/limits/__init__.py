"""Limits of claims in simulated histories."""
